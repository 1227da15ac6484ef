"""What ``import sheafdeq`` offers: loaded on first use, and seen by type checkers."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import sheafdeq
from sheafdeq import models


@pytest.mark.parametrize("name", sheafdeq.__all__)
def test_every_name_is_there(name: str) -> None:
    assert getattr(sheafdeq, name) is not None


def test_all_models_are_offered() -> None:
    assert set(models.__all__) <= set(sheafdeq.__all__)
    assert all(getattr(sheafdeq, name) is getattr(models, name) for name in models.__all__)


def test_type_checkers_see_the_same_names() -> None:
    """The imports behind TYPE_CHECKING lead to the objects that are loaded on first use."""
    tree = ast.parse(Path(sheafdeq.__file__).read_text())
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    seen = {}
    for node in block.body:
        assert isinstance(node, ast.ImportFrom)
        module = __import__(str(node.module), fromlist=["_"])
        seen.update({alias.name: getattr(module, alias.name) for alias in node.names})
    assert set(seen) == set(sheafdeq.__all__) - {"__version__"}
    assert all(getattr(sheafdeq, name) is value for name, value in seen.items())


def test_unknown_names_are_attribute_errors_and_dir_lists_the_others() -> None:
    with pytest.raises(AttributeError, match="SheafDECK"):
        sheafdeq.SheafDECK  # noqa: B018
    assert dir(sheafdeq) == sorted(sheafdeq.__all__)


def test_the_package_alone_does_not_load_torch() -> None:
    code = "import sys, sheafdeq; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
