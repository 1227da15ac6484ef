"""Docstrings of this project are plain text with ``literals``, roles and a few directives; show
them as such.

Mathematics in words (|x|, H_v, 2*c) would be read as markup. Paragraphs are therefore escaped
outside literals and roles, indented blocks and tables become literal blocks, and "Args:" becomes a
list. Directives stay as they are.
"""

from __future__ import annotations

import re
from typing import Any

_KEPT = re.compile(r"(``.+?``|:[a-zA-Z:]+:`[^`]+`)", re.DOTALL)
_ROLE = re.compile(r":(?:class|func|meth|mod|attr|data|exc|math):`([^`]+)`")
_SECTION = re.compile(
    r"^(Args|Arguments|Shapes|Returns|Raises|Invariants|Reference|Yields)\b.*:\s*$"
)


def escaped(text: str) -> str:
    """Text whose every character stands for itself, apart from literals and mathematics."""
    parts = []
    for part in _KEPT.split(text):
        if part.startswith("``"):
            parts.append(part)
        elif found := _ROLE.fullmatch(part):
            parts.append(part if part.startswith(":math:") else f"``{short(found.group(1))}``")
        else:
            parts.append(re.sub(r"([\\*`|_\[\]<>])", r"\\\1", part))
    return "".join(parts)


def short(name: str) -> str:
    """What a role shows: the last part of a name with a tilde, else all of it."""
    shown = " ".join(name.split("<")[0].split())
    return shown.lstrip("~!").rsplit(".", 1)[-1] if shown.startswith("~") else shown


def blocks(lines: list[str]) -> list[list[str]]:
    """Paragraphs: runs of lines without a blank one."""
    found: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            found[-1].append(line.rstrip())
        elif found[-1]:
            found.append([])
    return [block for block in found if block]


def plain(lines: list[str]) -> list[str]:
    """The docstring as reStructuredText that shows what was written."""
    made: list[str] = []
    directive = False
    for block in blocks(lines):
        indent = len(block[0]) - len(block[0].lstrip())
        if block[0].lstrip().startswith(".. ") or (directive and indent):
            made += [*block, ""]
            directive = True
            continue
        directive = False
        if indent:
            made += ["::", "", *(f"    {line}" for line in block), ""]
            continue
        head = [line for line in block if not line.startswith((" ", "\t"))]
        if _SECTION.match(block[0]) or (
            len(head) == 1 and len(block) > 1 and block[0].endswith(":")
        ):
            made += [escaped(block[0]), ""]
            entry = ""
            step = (
                min(len(line) - len(line.lstrip()) for line in block[1:]) if len(block) > 1 else 0
            )
            for line in block[1:]:
                if len(line) - len(line.lstrip()) == step and entry:
                    made.append(f"* {escaped(entry)}")
                    entry = line.strip()
                else:
                    entry = f"{entry} {line.strip()}".strip()
            if entry:
                made += [f"* {escaped(entry)}", ""]
            continue
        if any(line.startswith((" ", "\t")) for line in block[1:]) or any(
            "  " in line.strip() for line in block
        ):
            if re.match(r"^(\*|-|\(?[a-z0-9]\)|[0-9]+\.) ", block[0]):  # a list
                for line in block:
                    text = line.strip()
                    starts = re.match(r"^(\*|-) (.*)", text)
                    made.append(f"* {escaped(starts.group(2))}" if starts else f"  {escaped(text)}")
                made.append("")
            else:  # columns that were aligned by hand
                made += ["::", "", *(f"    {line}" for line in block), ""]
            continue
        if re.match(r"^(\*|-) ", block[0]):
            for line in block:
                new = re.match(r"^(\*|-) ", line)
                made.append(
                    f"* {escaped(line.strip()[2:])}" if new else f"  {escaped(line.strip())}"
                )
            made.append("")
            continue
        made += [*escaped("\n".join(block)).split("\n"), ""]  # a role may go over the end of a line
    return made


def process(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Replace the lines of one docstring; what a base class of another package says is left out."""
    home = getattr(obj, "__module__", None) or ""
    if what in ("class", "exception", "method", "function") and not str(home).startswith(
        "sheafdeq"
    ):
        lines[:] = lines[:1] and [escaped(lines[0])]
        return
    lines[:] = plain(list(lines))


def setup(app: Any) -> dict[str, bool]:
    """Called by Sphinx."""
    app.connect("autodoc-process-docstring", process)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
