"""The documentation site builds without a warning, and has every page."""

import importlib.util
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def test_docstrings_become_plain_text():
    sys.path.insert(0, str(ROOT / "docs" / "_extensions"))
    try:
        from plain_docstrings import escaped, plain
    finally:
        sys.path.pop(0)
    assert escaped("|x| of H_v and ``a*b``") == r"\|x\| of H\_v and ``a*b``"
    assert escaped(":class:`Graph` <3") == r"``Graph`` \<3"
    assert "::" in plain(["Text.", "", "    a = b", ""])
    assert plain(["Args:", "    x: one", "        more", "    y: two"]) == [
        "Args:",
        "",
        "* x: one more",
        "* y: two",
        "",
    ]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path):
    for name in ("sphinx", "furo", "myst_parser", "sphinx_gallery"):
        if importlib.util.find_spec(name) is None:
            pytest.skip(f"the documentation site needs {name} (pip install 'sheafdeq[docs]')")
    command = [
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "--keep-going",
        "-q",
        "-b",
        "html",
        "-d",
        str(tmp_path / "trees"),
    ]
    done = subprocess.run(
        [*command, str(ROOT / "docs"), str(tmp_path / "site")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for page in (
        "index",
        "tutorial",
        "theory",
        "made/api",
        "made/statements",
        "gallery/index",
        "paper_map",
        "why_not",
    ):
        assert (tmp_path / "site" / f"{page}.html").is_file()
