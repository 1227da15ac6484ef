"""The notes of a release, from CHANGELOG.md: `python benchmarks/release_notes.py 0.2.0`.

Without a version: what is not released yet. The section is printed as it stands, so that a release
says what the changelog says.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

CHANGELOG = Path(__file__).resolve().parents[1] / "CHANGELOG.md"


def sections(text: str) -> dict[str, str]:
    """Version -> its section without the heading."""
    parts = re.split(r"^## \[([^\]]+)\][^\n]*\n", text, flags=re.MULTILINE)
    return {name: body.strip() for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def notes(text: str, version: str) -> str:
    """The section of a version, or an error that lists those that exist."""
    found = sections(text)
    if version not in found:
        raise SystemExit(f"CHANGELOG.md has no section {version!r}; it has {', '.join(found)}")
    if not found[version]:
        raise SystemExit(f"the section {version!r} of CHANGELOG.md is empty")
    return found[version]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("version", nargs="?", default="Unreleased")
    sys.stdout.write(notes(CHANGELOG.read_text(encoding="utf-8"), parser.parse_args().version))
    sys.stdout.write("\n")


if __name__ == "__main__":
    main()
