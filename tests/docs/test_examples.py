"""Every Python example in the README and the guides runs as it stands."""

import re
import sys
import types
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "docs" / "adding_a_model.md"]


def blocks(page: Path) -> list[str]:
    return re.findall(r"```python\n(.*?)```", page.read_text(), flags=re.DOTALL)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_examples_run(page, capsys, monkeypatch):
    code = "\n".join(blocks(page))
    assert code.strip(), f"{page.name} has no Python example"
    module = types.ModuleType("documented_example")  # dataclasses look their module up by name
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, str(page), "exec"), module.__dict__)
    assert capsys.readouterr().out.strip()


def test_the_documented_model_passes_the_contract(monkeypatch):
    module = types.ModuleType("documented_model")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile("\n".join(blocks(ROOT / "docs" / "adding_a_model.md")), "adding_a_model", "exec"), module.__dict__)
    suite = module.TestAverageNet()
    suite.test_contract()
    suite.test_repr_and_reset()


def test_links_in_the_pages_lead_somewhere():
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text()):
            if "://" not in target and not target.startswith("mailto:"):
                assert (page.parent / target).exists(), f"{page.name} links to {target}"
