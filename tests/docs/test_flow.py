"""docs/flow.md walks through the package: every file it names is there, and every module is named
once."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src" / "sheafdeq"
MODULES = {
    str(path.relative_to(PACKAGE))
    for path in PACKAGE.rglob("*.py")
    if path.name not in ("__init__.py", "__main__.py")
}


def test_every_module_is_named_once() -> None:
    text = (ROOT / "docs" / "flow.md").read_text(encoding="utf-8")
    named = Counter(re.findall(r"`([\w/]+\.py)`", text)) - Counter(["tests/test_imports.py"])
    assert [name for name in named if name not in MODULES] == []
    assert [name for name, count in named.items() if count > 1] == []
    folders = tuple(re.findall(r"`(\w+/)`", text))  # a folder that is named stands for its files
    assert sorted(m for m in MODULES if m not in named and not m.startswith(folders)) == []


def test_no_file_name_has_two_meanings() -> None:
    """But commands are named after what they run, and rules and proofs after the models or parts
    they are about."""
    after_others = ("cli/", "certificates/rules/", "predictions/")
    names = Counter(Path(m).name for m in MODULES if not m.startswith(after_others))
    assert [name for name, count in names.items() if count > 1] == []
