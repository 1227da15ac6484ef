"""Pages made from the sources: the API reference (every module with ``__all__``) and the map from
statements to code and tests."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
MADE = "made"
STATEMENT = re.compile(
    r"^\*\*(Definition|Lemma|Theorem|Corollary|Proposition) (\d+)(?: \(([^)]*)\))?", re.MULTILINE
)
CITED = re.compile(
    r"\b(definition|lemma|theorem|corollar|proposition)(?:s|y|ies|ys)?"
    r"[ _](\d+(?:(?:, | and |, and | to |_and_|; )\d+)*)",
    re.IGNORECASE,
)


def modules() -> list[str]:
    """Dotted names of the public modules, in order."""
    source = ROOT / "src" / "sheafdeq"
    found = []
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        if "cli" in parts or any(part.startswith("_") and part != "__init__" for part in parts):
            continue
        if has_list(ast.parse(path.read_text(encoding="utf-8"))):
            found.append(".".join(part for part in parts if part != "__init__"))
    return found


def has_list(tree: ast.Module) -> bool:
    """Whether a module names what is public."""
    assignments = [node for node in tree.body if isinstance(node, ast.Assign)]
    return any(
        getattr(target, "id", "") == "__all__" for node in assignments for target in node.targets
    )


def is_package(name: str) -> bool:
    """Whether a dotted name is a folder."""
    return (ROOT / "src" / Path(*name.split("."))).is_dir()


def api_pages(folder: Path) -> None:
    """One page for each package, one section for each of its modules."""
    names = modules()
    packages = sorted({name.split(".")[1] for name in names if name.count(".")})
    listing = [
        "# API reference", "",
        "Every public name, from its docstring. The packages follow the data; [how the parts "
        "fit](../flow.md) has the picture.", "",
        "```{toctree}", ":maxdepth: 1", "",
    ]  # fmt: skip
    for package in packages:
        own = [name for name in names if name.split(".")[1:2] == [package]]
        title = f"sheafdeq.{package}"
        lines = [title, "=" * len(title), ""]
        for name in own:
            heading = name
            lines += [heading, "-" * len(heading), "", f".. automodule:: {name}"]
            if is_package(name):
                lines += ["   :no-members:", ""]  # what it re-exports stands with its own module
            else:
                lines += [""]
        write(folder / f"api_{package}.rst", "\n".join(lines) + "\n")
        listing.append(f"api_{package}")
    write(folder / "api.md", "\n".join([*listing, "```", ""]))


def citations(text: str) -> set[tuple[str, int]]:
    """Kinds and numbers of the statements a text names."""
    found = set()
    for kind, numbers in CITED.findall(text):
        name = "corollary" if kind.lower() == "corollar" else kind.lower()
        for first, last in re.findall(r"(\d+)(?: to (\d+))?", numbers):
            found |= {(name, number) for number in range(int(first), int(last or first) + 1)}
    return found


def statement_page(folder: Path) -> None:
    """Each numbered statement of the theory with the modules that rely on it and the tests that
    check it."""
    text = (ROOT / "docs" / "theory.md").read_text(encoding="utf-8")
    code: dict[str, set[tuple[str, int]]] = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        name = ".".join(path.relative_to(ROOT / "src").with_suffix("").parts)
        code[name] = citations(path.read_text(encoding="utf-8"))
    tests: dict[str, set[tuple[str, int]]] = {}
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        source = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                part = ast.get_source_segment(source, node) or ""
                tests[f"{path.relative_to(ROOT).as_posix()}::{node.name}"] = citations(part)
    lines = [
        "# Statements, code and tests", "",
        "Every numbered statement of the [theory](../theory.md), the modules whose docstrings "
        "rely on it, and the tests that name it. "
        "The table is made from the sources.", "",
        "| statement | code | tests |", "|---|---|---|",
    ]  # fmt: skip
    for kind, number, title in STATEMENT.findall(text):
        key = (kind.lower(), int(number))
        homes = ", ".join(f"`{name}`" for name, known in code.items() if key in known) or "–"
        checks = [name for name, known in tests.items() if key in known]
        shown = ", ".join(f"`{name.removeprefix('tests/')}`" for name in checks[:4])
        shown += f" and {len(checks) - 4} more" if len(checks) > 4 else ""
        label = f"{kind} {number}" + (f" ({title})" if title and "$" not in title else "")
        lines.append(f"| {label} | {homes} | {shown or 'named in the text of a test module'} |")
    write(folder / "statements.md", "\n".join(lines) + "\n")


def write(path: Path, text: str) -> None:
    """Only when it changes, so that Sphinx does not build it again."""
    if not path.is_file() or path.read_text(encoding="utf-8") != text:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


def make(app: Any) -> None:
    """Before Sphinx looks for its sources."""
    folder = Path(app.srcdir) / MADE
    api_pages(folder)
    statement_page(folder)
    if (ROOT / "RESULTS.md").is_file():
        include = "```{include} ../../RESULTS.md\n:relative-docs: docs\n:relative-images:\n```\n"
        write(folder / "results_tables.md", include)


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("builder-inited", make, priority=100)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
