"""Code is named by what it computes: files may move, and a user's own modules count."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
import textwrap
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

import sheafdeq
from sheafdeq.errors import InputError
from sheafdeq.identity import code_identity
from sheafdeq.identity.definitions import STANDS_FOR_ITSELF, Definitions
from sheafdeq.identity.normal_form import native_normal_form
from sheafdeq.identity.sources import Definition, External, NativeSources, Sources, WholeModule

PACKAGE_ROOT = Path(sheafdeq.__file__).parent


class Tree:
    """A package "user" in a folder, and the digest of one name in it."""

    def __init__(self, folder: Path, files: dict[str, str]) -> None:
        self.folder = folder
        for name, text in {"__init__.py": "", **files}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(text))

    def digest(self, module: str, name: str) -> str:
        sources = Sources({"user": self.folder})
        found = sources.meanings(sources.module(module), name)
        assert len(found) == 1
        return Definitions(sources).digest(found[0])


@pytest.fixture
def tree(tmp_path):
    numbers = iter(range(1000))
    return lambda **files: Tree(
        tmp_path / str(next(numbers)), {f"{name}.py": text for name, text in files.items()}
    )


MODEL = """
    '''A model.'''
    import torch
    from user.part import helper as scaled, RATE

    class Model:
        '''Doubles.'''
        width: int = 3

        def step(self, state: float) -> float:
            # why
            if state is None:
                raise ValueError(f"bad state {state}")
            return scaled(state) * RATE + torch.pi
"""
PART = """
    RATE = 0.5
    UNUSED = 1

    def helper(x):
        return 2 * x
"""


def test_what_says_nothing_to_the_machine_changes_nothing(tree):
    original = tree(model=MODEL, part=PART).digest("user.model", "Model")
    for old, new in [
        ("'''Doubles.'''", "'''Triples.'''"),
        ("# why", "# because"),
        ("state: float) -> float", "state: 'torch.Tensor | float') -> object"),
        ("bad state", "not a state"),
        ("'''A model.'''", ""),
        ("import torch", "import torch, math"),
    ]:
        assert old in MODEL
        assert (
            tree(model=MODEL.replace(old, new), part=PART).digest("user.model", "Model") == original
        ), new
    assert (
        tree(model=MODEL, part=PART.replace("UNUSED = 1", "UNUSED = 2")).digest(
            "user.model", "Model"
        )
        == original
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("2 * x", "3 * x"),
        ("RATE = 0.5", "RATE = 0.25"),
        ("return 2 * x", "return 2 * x + (0 if x else 1)"),
    ],
)
def test_a_changed_helper_changes_what_uses_it(tree, old, new):
    before = tree(model=MODEL, part=PART).digest("user.model", "Model")
    assert tree(model=MODEL, part=PART.replace(old, new)).digest("user.model", "Model") != before


@pytest.mark.parametrize(
    ("old", "new"),
    [("width: int = 3", "width: int = 4"), ("* RATE", "/ RATE"), ("torch.pi", "torch.e")],
)
def test_a_changed_body_changes_the_digest(tree, old, new):
    before = tree(model=MODEL, part=PART).digest("user.model", "Model")
    assert tree(model=MODEL.replace(old, new), part=PART).digest("user.model", "Model") != before


def test_modules_may_be_renamed_moved_split_and_merged(tree):
    original = tree(model=MODEL, part=PART).digest("user.model", "Model")
    renamed = tree(network=MODEL.replace("user.part", "user.piece"), piece=PART)
    assert renamed.digest("user.network", "Model") == original
    split = tree(
        model=MODEL.replace(
            "from user.part import helper as scaled, RATE",
            "from .a import helper as scaled\n    from .b import RATE",
        ),
        a="def helper(x):\n    return 2 * x",
        b="RATE = 0.5",
    )
    assert split.digest("user.model", "Model") == original
    exported = tree(
        model=MODEL.replace("user.part", "user"),
        **{"__init__": "from user.deep import *\n", "deep": PART},
    )
    assert exported.digest("user.model", "Model") == original
    lazy = MODEL.replace("from user.part import helper as scaled, RATE", "").replace(
        "# why", "from user.part import helper as scaled, RATE"
    )
    assert tree(model=lazy, part=PART).digest("user.model", "Model") == original


def test_the_name_of_a_module_is_not_part_of_an_attribute_chain(tree):
    text = "import user.{0}\n\ndef f(x):\n    return user.{0}.helper(x)"
    first = tree(model=text.format("part"), part=PART).digest("user.model", "f")
    assert tree(model=text.format("piece"), piece=PART).digest("user.model", "f") == first
    short = "from user import piece as p\n\ndef f(x):\n    return p.helper(x)"
    assert tree(model=short, piece=PART).digest("user.model", "f") == first
    assert tree(model=short, piece=PART.replace("2 * x", "x")).digest("user.model", "f") != first


def test_an_import_that_changes_a_meaning_changes_the_digest(tree):
    """The set of reached definitions is the same in both; only what the names mean differs."""
    text = (
        "from user.{} import f as first\nfrom user.{} import f as second\n\n"
        "def g(x):\n    return first(x) - second(x)"
    )
    files = {"a": "def f(x):\n    return x", "b": "def f(x):\n    return -x"}
    one, other = (
        tree(model=text.format(*names), **files).digest("user.model", "g") for names in ("ab", "ba")
    )
    assert one != other
    chains = "import user.a, user.b\n\ndef g(x):\n    return user.{}.f(x) - user.{}.f(x)"
    one, other = (
        tree(model=chains.format(*names), **files).digest("user.model", "g")
        for names in ("ab", "ba")
    )
    assert one != other
    library = "from {} import sin as f\n\ndef g(x):\n    return f(x)"
    assert tree(model=library.format("math")).digest("user.model", "g") != tree(
        model=library.format("cmath")
    ).digest("user.model", "g")


def test_mutual_recursion_has_digests_and_sees_changes(tree):
    even = "def even(n):\n    return n == 0 or odd(n - 1)\n\n"
    odd = "def odd(n):\n    return n != {} and even(n - 1)\n\n"
    text, swapped = even + odd, odd + even
    first = tree(model=text.format(0))
    assert first.digest("user.model", "even") == tree(model=swapped.format(0)).digest(
        "user.model", "even"
    )
    assert first.digest("user.model", "even") != tree(model=text.format(1)).digest(
        "user.model", "even"
    )
    assert first.digest("user.model", "even") != first.digest("user.model", "odd")


def test_what_an_import_does_counts(tree):
    text = "import torch\nimport user.setup\n\ndef f(x):\n    return x"
    first = tree(model=text, setup="import torch\ntorch.set_flush_denormal(True)").digest(
        "user.model", "f"
    )
    assert (
        tree(model=text, setup="import torch\ntorch.set_flush_denormal(False)").digest(
            "user.model", "f"
        )
        != first
    )
    assert tree(model=text, setup="import torch").digest("user.model", "f") != first


def test_captured_values_of_builders_count():
    def build(model, **fixed):
        def make(**options):
            return model(**{**options, **fixed})

        return make

    digests = {
        code_identity({"model": [value]}).digest
        for value in (build(Tree), build(Sources), build(Tree, a=1), build(Tree, a=2))
    }
    assert len(digests) == 4
    assert code_identity({"model": [build(Tree, a=1)]}) == code_identity(
        {"model": [build(Tree, a=1)]}
    )
    assert code_identity({"model": [partial(len, 1)]}) != code_identity(
        {"model": [partial(len, 2)]}
    )


@dataclass(frozen=True)
class Builder:
    """As the registry's: what it builds with is in its fields."""

    constructor: type
    build: object


def test_fields_of_builders_count():
    def fixed(**options):
        return Builder(Tree, lambda: options)

    assert code_identity({"model": [fixed(a=1)]}) == code_identity({"model": [fixed(a=1)]})
    assert code_identity({"model": [fixed(a=1)]}) != code_identity({"model": [fixed(a=2)]})
    assert code_identity({"model": [Builder(Tree, 1)]}) != code_identity(
        {"model": [Builder(Sources, 1)]}
    )


def test_code_without_source_is_refused():
    names = {"__name__": "nowhere"}
    exec("class Model: pass", names)
    with pytest.raises(InputError, match="define it in a module file"):
        code_identity({"model": [names["Model"]]})


def test_native_sources_count_without_comments_and_file_names(tmp_path):
    first, second = tmp_path / "a.cpp", tmp_path / "b.hpp"
    first.write_text(
        '#include "b.hpp"\n// one\nint f() { return 1; } /* more\n lines */ '
        'const char* s = "// kept";\n'
    )
    second.write_text('int f()   { return 1; }  const char* s = "// kept";')
    assert native_normal_form(first) == native_normal_form(second)
    second.write_text("int f() { return 2; }")
    assert native_normal_form(first) != native_normal_form(second)


# ---------------------------------------------------------------------- this package


def _in_package(module: str, name: str) -> set:
    sources = Sources()
    return Definitions(sources).reached(sources.meanings(sources.module(module), name))


def test_a_model_reaches_what_matters_and_nothing_else():
    reached = _in_package("sheafdeq.models.sheaf_deq", "SheafDEQ")
    modules = {key.module for key in reached if isinstance(key, Definition)}
    assert {
        "sheafdeq.solvers.iterate",
        "sheafdeq.ops.sheaf_step",
        "sheafdeq.edges",
        "sheafdeq.equilibrium",
    } <= modules
    assert not any(
        name.startswith(("sheafdeq.cli", "sheafdeq.report", "sheafdeq.training"))
        for name in modules
    )
    assert not any("ignn" in name for name in modules)
    assert NativeSources("sheafdeq") in reached
    assert not any(isinstance(key, WholeModule) for key in reached)
    assert any(isinstance(key, External) and key.name.startswith("torch") for key in reached)
    training = {
        key.module
        for key in _in_package("sheafdeq.training.loop", "Trainer")
        if isinstance(key, Definition)
    }
    assert {"sheafdeq.training.learning_rate", "sheafdeq.training.penalty"} <= training


def _package_modules():
    sources = Sources()
    for path in sorted(PACKAGE_ROOT.rglob("*.py")):
        parts = ("sheafdeq", *path.relative_to(PACKAGE_ROOT).with_suffix("").parts)
        yield sources.module(".".join(parts).removesuffix(".__init__"))


def test_what_stands_for_itself_exists():
    found = set()
    for module in _package_modules():
        for name, bound in module.bindings.items():
            found |= {name} if any(isinstance(binding, int) for binding in bound) else set()
    assert found >= STANDS_FOR_ITSELF


def test_importing_a_module_of_the_package_does_nothing_another_module_needs():
    """Effects of a module count for its own definitions alone, so they may change its own objects
    alone."""
    for module in _package_modules():
        for statement in (module.statements[index] for index in module.effects):
            if module.name == "sheafdeq.__main__" or "atexit.register" in ast.unparse(statement):
                continue
            assert isinstance(statement, ast.Assign), f"{module.name}: {ast.unparse(statement)}"
            changed = statement.targets[0]
            while isinstance(changed, ast.Attribute | ast.Subscript):
                changed = changed.value
            own = [bound for bound in module.bindings[changed.id] if isinstance(bound, int)]
            assert own, f"{module.name}: {ast.unparse(statement)}"


IDENTIFY = """
import sys, torch
from sheafdeq.training.config import TrainingConfig
from sheafdeq.training.run_identity import identify
config = {"task": {"name": "counting", "options": {"chains": 5}}, "model": "MODEL"}
print(identify(TrainingConfig.parse(config)).id)
"""


def _id_in(folder: Path, model: str = "appnp") -> str:
    environment = {
        **os.environ,
        "PYTHONPATH": str(folder),
        "SHEAFDEQ_CODE_VERSION": "",
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    command = [sys.executable, "-c", IDENTIFY.replace("MODEL", model)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_ids_of_a_copy_with_renamed_modules_are_equal_and_with_an_edited_function_not(tmp_path):
    shutil.copytree(
        PACKAGE_ROOT, tmp_path / "sheafdeq", ignore=shutil.ignore_patterns("__pycache__", "*.so")
    )
    original = _id_in(tmp_path)
    moves = {
        "models.appnp": "models.personalised",
        "layers.checks": "models.checks",
        "solvers.iterate": "solvers.loop",
        "training.learning_rate": "training.rates",
    }
    for old, new in moves.items():
        (tmp_path / "sheafdeq" / f"{old.replace('.', '/')}.py").rename(
            tmp_path / "sheafdeq" / f"{new.replace('.', '/')}.py"
        )
    for path in tmp_path.rglob("*.py"):
        text = path.read_text()
        for old, new in moves.items():
            text = text.replace(f"sheafdeq.{old}", f"sheafdeq.{new}")
        path.write_text(text)
    assert _id_in(tmp_path) == original
    moved = tmp_path / "sheafdeq" / "solvers" / "loop.py"
    moved.write_text(moved.read_text() + "\n\ndef unused():\n    return 1\n")
    assert _id_in(tmp_path) == original
    schedule = tmp_path / "sheafdeq" / "training" / "rates.py"
    assert "return 1.0" in schedule.read_text()
    schedule.write_text(schedule.read_text().replace("return 1.0", "return 2.0", 1))
    assert _id_in(tmp_path) != original
