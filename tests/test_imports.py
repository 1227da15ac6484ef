"""Dependencies point one way (docs/flow.md); a file that imports against the arrow fails here."""

import ast
from pathlib import Path

import sheafdeq

ROOT = Path(sheafdeq.__file__).parent

# layer -> what it may import from the package (besides itself)
ALLOWED = {
    "errors": {"solvers"},  # typing only, behind TYPE_CHECKING
    "distances": {"errors"},
    "regular_file": set(),
    "printable": set(),
    "options": {"errors"},
    "records": {"regular_file", "errors"},
    "identity": {"errors"},
    "data": {"plain_tensor", "regular_file", "options", "errors"},
    "recurrence": {"data", "errors"},
    "solvers": {"distances", "errors"},
    "adjoints": {"solvers", "distances", "errors"},
    "equilibrium": {
        "plain_tensor",
        "data",
        "distances",
        "recurrence",
        "solvers",
        "adjoints",
        "errors",
    },
    "threads": {"errors"},
    "plain_tensor": {"errors"},
    "ops": {"plain_tensor", "data", "recurrence", "errors", "threads"},
    "layers": {
        "data",
        "recurrence",
        "solvers",
        "equilibrium",
        "ops",
        "theory",
        "errors",
        "models",  # typing only, behind TYPE_CHECKING
    },
    "models": {
        "data",
        "recurrence",
        "solvers",
        "adjoints",
        "equilibrium",
        "ops",
        "layers",
        "distances",
        "errors",
    },
    # of models only the operator
    "theory": {"data", "recurrence", "solvers", "layers", "models", "distances", "errors"},
    "testing": {
        "data",
        "recurrence",
        "solvers",
        "adjoints",
        "equilibrium",
        "models",
        "distances",
        "errors",
    },
    "registry": {"equilibrium", "models", "data", "options", "errors"},
    "diagnostics": {"data", "recurrence", "solvers", "equilibrium", "distances", "errors"},
    "asynchronous": {
        "data",
        "recurrence",
        "solvers",
        "equilibrium",
        "distances",
        "diagnostics",
        "errors",
        "records",
    },
    "certificates": {
        "data",
        "recurrence",
        "solvers",
        "adjoints",
        "equilibrium",
        "models",
        "layers",
        "ops",
        "theory",
        "distances",
        "diagnostics",
        "errors",
    },
    "predictions": {  # of report only the look of figures
        "certificates",
        "data",
        "equilibrium",
        "errors",
        "models",
        "report",
        "solvers",
    },
    "training": {
        "data",
        "equilibrium",
        "registry",
        "records",
        "regular_file",
        "options",
        "solvers",
        "adjoints",
        "recurrence",
        "distances",
        "errors",
        "models",
        "identity",
        "machine",
        "threads",
    },
    # of training the configurations and recipes, by which rows are named
    "report": {"records", "training", "regular_file", "printable", "options", "errors"},
    "explorer": {
        "data",
        "recurrence",
        "solvers",
        "equilibrium",
        "distances",
        "diagnostics",
        "asynchronous",
        "report",
        "errors",
    },
    "fuzzing": {
        "data",
        "equilibrium",
        "registry",
        "records",
        "regular_file",
        "options",
        "models",
        "ops",
        "training",
        "report",
        "cli",
        "errors",
    },
    "distributed": {  # of training only how Ray is started safely
        "machine",
        "training",
        "data",
        "recurrence",
        "solvers",
        "adjoints",
        "equilibrium",
        "distances",
        "diagnostics",
        "certificates",
        "models",
        "errors",
        "__version__",
    },
    "machine": set(),
    "speed": {"data", "ops", "machine", "models", "recurrence", "records", "registry"},
    "evaluation": {"data", "equilibrium", "records", "training", "errors"},
}


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).parts[0].removesuffix(".py")


def imported_layers(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module:
            names = [node.module]
            if node.module == "sheafdeq":
                names = [f"sheafdeq.{alias.name}" for alias in node.names]
        for name in names:
            parts = name.split(".")
            if parts[0] == "sheafdeq" and len(parts) > 1:
                found.add(parts[1])
    return found


def violations(root: Path = ROOT) -> list[str]:
    wrong = []
    for path in sorted(root.rglob("*.py")):
        layer = layer_of(path)
        if layer in ("cli", "__init__", "__main__"):
            continue
        assert layer in ALLOWED, (
            f"{layer} is a new layer: give it a line in ALLOWED and in docs/flow.md"
        )
        bad = imported_layers(path) - ALLOWED[layer] - {layer, "__version__"}
        wrong += [f"{path.relative_to(root)} imports {name}" for name in sorted(bad)]
    return wrong


def test_dependencies_point_one_way():
    assert violations() == []


def test_layers_know_of_theory_only_its_numbers():
    """Layers may read proved constants (theory.coefficients); everything else of theory stands
    above the models."""
    for path in (ROOT / "layers").glob("*.py"):
        for line in path.read_text().splitlines():
            if "sheafdeq.theory" in line and "import" in line:
                assert any(m in line for m in ("theory.coefficients", "theory.enclosure")), (
                    f"{path.name}: {line}"
                )


def test_nothing_imports_the_command_line():
    users = ("cli", "fuzzing")  # the fuzzer tries commands as a user would
    assert not [
        p
        for p in ROOT.rglob("*.py")
        if layer_of(p) not in users and p.name != "__main__.py" and "cli" in imported_layers(p)
    ]


def test_the_check_sees_a_violation(tmp_path):
    bad = tmp_path / "bad.py"
    bad.write_text("from sheafdeq.training import loop\nimport sheafdeq.cli\n")
    assert imported_layers(bad) == {"training", "cli"}
