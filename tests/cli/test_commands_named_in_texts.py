"""Every command that a help text, an error or a page names exists, with the options it names."""

from __future__ import annotations

import argparse
import ast
import re
from pathlib import Path

import pytest

import sheafdeq
from sheafdeq.cli import build_parser

PACKAGE = Path(sheafdeq.__file__).parent
ROOT = Path(__file__).parents[2]
COMMAND = re.compile(r"`+sheafdeq ([a-z][^`]*)`+")


def texts(path: Path) -> list[str]:
    """The strings of a module, adjacent pieces joined; another file as a whole."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".py":
        return [text]
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            found.append(node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else "X" for part in node.values)
            found.append("".join(map(str, parts)))
    return found


def named_commands(path: Path) -> list[str]:
    return [" ".join(match.split()) for text in texts(path) for match in COMMAND.findall(text)]


def complaint(command: str, parser: argparse.ArgumentParser) -> str | None:
    """What is wrong with a command: a word that is no command, or an option nobody has."""
    words = command.split()
    while True:
        choices = next(
            (
                action.choices
                for action in parser._actions
                if isinstance(action, argparse._SubParsersAction)
            ),
            None,
        )
        if not choices or not words or not re.fullmatch(r"[a-z][a-z-]*", words[0]):
            break
        if words[0] not in choices:
            return f"no command {words[0]!r}"
        parser = choices[words.pop(0)]
    known = {word for action in parser._actions for word in action.option_strings}
    flags = {word for word in re.findall(r"(?<![\w-])--[a-z][a-z-]*", " ".join(words))}
    return f"no option {sorted(flags - known)}" if flags - known else None


FILES = [
    path
    for folder, patterns in ((PACKAGE, ("*.py", "*.html", "*.js")), (ROOT / "docs", ("*.md",)))
    for pattern in patterns
    for path in sorted(folder.rglob(pattern))
] + [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "results" / "README.md"]


def test_every_named_command_exists() -> None:
    parser = build_parser()
    named = [(path, command) for path in FILES for command in named_commands(path)]
    assert len(named) > 100
    wrong = [
        f"{path.relative_to(ROOT)}: `sheafdeq {command}`: {problem}"
        for path, command in named
        if (problem := complaint(command, parser)) is not None
    ]
    assert wrong == []


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ("data list", "no command 'data'"),
        ("sweep forget mine", "no command 'forget'"),
        ("train --modell x", "no option ['--modell']"),
        ("train --model x --set a=1", None),
        ("sweep status evidence --missing", None),
    ],
)
def test_the_check_sees_what_does_not_exist(command: str, problem: str | None) -> None:
    assert complaint(command, build_parser()) == problem
