"""Every Python block of every page runs as it stands, every command on it is one the command line
takes, every link leads somewhere."""

import contextlib
import re
import runpy
import shlex
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", flags=re.DOTALL | re.MULTILINE)


def blocks(page: Path, language: str = "python") -> list[str]:
    return [
        text for kind, text in FENCE.findall(page.read_text(encoding="utf-8")) if kind == language
    ]


def commands(page: Path) -> list[str]:
    """Lines of the fenced blocks that call the program, without prompt and remark."""
    found = []
    for kind, text in FENCE.findall(page.read_text(encoding="utf-8")):
        if kind in ("", "console", "sh", "bash"):
            lines = text.replace("\\\n", " ").splitlines()
            found += [
                line.removeprefix("$ ")
                for line in lines
                if line.removeprefix("$ ").startswith("sheafdeq ")
            ]
    return found


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda p: p.name)
def test_python_blocks_run(page, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    module = types.ModuleType("documented_example")  # dataclasses look their module up by name
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile("\n".join(blocks(page)), str(page), "exec"), module.__dict__)
    assert capsys.readouterr().out.strip()


@pytest.mark.parametrize("page", [page for page in PAGES if commands(page)], ids=lambda p: p.name)
def test_commands_are_understood(page, capsys, monkeypatch, tmp_path):
    from sheafdeq.cli import build_parser

    for name in ("results", "configs", "docs"):  # folders a command may insist on
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / "runs").mkdir()
    monkeypatch.chdir(tmp_path)
    parser = build_parser()
    for line in commands(page):
        text = re.split(r"\s{3,}|\s#", line)[0]  # a remark stands behind spaces
        words = [re.sub(r"\$\w+", "1", word) for word in shlex.split(text)[1:]]
        understood = False
        with contextlib.suppress(SystemExit):
            parser.parse_args(words)
            understood = True
        assert understood, f"{page.name}: {text!r}: {capsys.readouterr().err.splitlines()[-1]}"


def test_the_documented_model_passes_the_contract(monkeypatch):
    module = types.ModuleType("documented_model")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(
        compile("\n".join(blocks(ROOT / "docs" / "adding_a_model.md")), "adding_a_model", "exec"),
        module.__dict__,
    )
    suite = module.TestAverageNet()
    suite.test_contract()
    suite.test_repr_and_reset()


def test_links_in_the_pages_lead_somewhere():
    for page in PAGES:
        text = FENCE.sub("", page.read_text(encoding="utf-8"))
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
            if "://" not in target and not target.startswith(("mailto:", "made/", "gallery/")):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_names_in_the_paper_map_exist():
    """Modules, classes and test files that the map promises are there."""
    import importlib

    text = (ROOT / "docs" / "paper_map.md").read_text(encoding="utf-8")
    for path in re.findall(r"`(tests/[\w/]+\.py|src/[\w/]+\.json|results/\w+)`", text):
        assert (ROOT / path).exists(), path
    for name in re.findall(r"`(sheafdeq\.[\w.]+)`", text):
        parts = name.split(".")
        for cut in range(len(parts), 0, -1):
            try:
                found = importlib.import_module(".".join(parts[:cut]))
            except ImportError:
                continue
            for part in parts[cut:]:
                found = getattr(found, part)
            break


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.py")), ids=lambda p: p.stem)
def test_gallery_examples_run(path, monkeypatch):
    matplotlib = pytest.importorskip("matplotlib", reason="the gallery draws with matplotlib")
    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.close("all")
    runpy.run_path(str(path), run_name="__main__")
    drawn = [plt.figure(number) for number in plt.get_fignums()]
    # an example of the gallery is there for its picture
    assert any(axis.has_data() for figure in drawn for axis in figure.axes)
    plt.close("all")
