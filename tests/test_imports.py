"""Dependencies point one way (docs/flow.md).

The import graph of the packages is read from the sources, imports inside functions included. It is
written down here exactly, so a new dependency is a decision, and it has no cycle.
"""

import ast
from pathlib import Path

import sheafdeq

ROOT = Path(sheafdeq.__file__).parent

# package or module -> what it imports from the others
IMPORTS = """
__main__: cli
adjoints: derivatives distances errors full_precision solvers
asynchronous: data diagnostics distances edges equilibrium errors records recurrence solvers
certificates: adjoints constructions data diagnostics distances edges equilibrium errors layers
    models ops recurrence solvers theory
cli: asynchronous certificates data diagnostics distances distributed equilibrium errors
    evaluation explorer identity ops options predictions printable records registry regular_file
    report speed training user_models zoo
compiled_call: tracing
constructions: data distances errors layers models solvers
data: edges errors full_precision options plain_tensor regular_file
derivatives: errors
diagnostics: data distances equilibrium errors full_precision solvers
distances: errors
distributed: adjoints certificates data derivatives distances edges equilibrium errors machine
    models solvers training
edges: errors plain_tensor
equilibrium: adjoints compiled_call data distances errors full_precision options plain_tensor
    pretrained solvers tracing
errors:
evaluation: data diagnostics distances equilibrium errors records solvers training
explain: equilibrium errors
explorer: asynchronous data diagnostics distances edges equilibrium errors report solvers
full_precision:
fuzzing: cli data edges errors ops options records registry report training
identity: errors
layers: adjoints data distances edges equilibrium errors ops recurrence solvers theory
machine:
models: adjoints data derivatives distances edges equilibrium errors layers ops recurrence solvers
ops: derivatives edges errors plain_tensor threads
options: errors
plain_tensor: errors
predictions: asynchronous certificates data equilibrium errors layers models report solvers
pretrained: adjoints distances errors records solvers tensor_files
printable:
records: errors regular_file
recurrence: data edges errors
registry: equilibrium errors models options regular_file solvers user_models
regular_file: errors
report: errors printable records regular_file training
solvers: distances errors tracing
speed: adjoints data errors machine models ops records registry solvers
tensor_files: errors records regular_file
testing: data edges equilibrium models recurrence
theory: errors
threads: errors
tracing: ops
training: adjoints data edges equilibrium errors identity machine options records registry
    regular_file solvers tensor_files threads user_models
user_models: equilibrium errors
zoo: equilibrium errors evaluation models options pretrained records regular_file report training
"""


def layer_of(path: Path, root: Path = ROOT) -> str:
    return path.relative_to(root).parts[0].removesuffix(".py")


def _typing_only(tree: ast.AST) -> set[ast.AST]:
    """What stands behind ``if TYPE_CHECKING`` is never run."""
    return {
        inner
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
        for statement in node.body
        for inner in ast.walk(statement)
    }


def imported_layers(path: Path) -> set[str]:
    """Packages and modules of the top level that a file imports, at once or lazily."""
    tree = ast.parse(path.read_text())
    skipped, found = _typing_only(tree), set()
    for node in ast.walk(tree):
        names = []
        if node in skipped:
            continue
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and node.module == "sheafdeq":
            names = [f"sheafdeq.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: imports are absolute"
            names = [node.module]
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
        for name in names:
            parts = name.split(".")
            if parts[0] == "sheafdeq" and len(parts) > 1 and parts[1] != "__version__":
                found.add(parts[1])
    return found


def import_graph(root: Path = ROOT) -> dict[str, set[str]]:
    graph: dict[str, set[str]] = {}
    for path in sorted(root.rglob("*.py")):
        layer = layer_of(path, root)
        if layer != "__init__":  # the face of the package shows all of it
            graph.setdefault(layer, set()).update(imported_layers(path) - {layer})
    return graph


def cycle_in(graph: dict[str, set[str]]) -> list[str]:
    """Some cycle, or nothing."""
    finished: set[str] = set()

    def visit(name: str, way: list[str]) -> list[str]:
        if name in way:
            return [*way[way.index(name) :], name]
        if name in finished:
            return []
        for following in sorted(graph.get(name, ())):
            if found := visit(following, [*way, name]):
                return found
        finished.add(name)
        return []

    return next((found for name in sorted(graph) if (found := visit(name, []))), [])


def test_no_package_imports_itself_by_a_detour():
    assert cycle_in(import_graph()) == []


def test_dependencies_are_those_written_down():
    lines = IMPORTS.replace("\n    ", " ").split("\n")
    entries = (line.partition(":") for line in lines if line)
    expected = {name: set(layers.split()) for name, _, layers in entries}
    found = import_graph()
    assert found.keys() == expected.keys()
    for name, layers in found.items():
        assert layers == expected[name], (
            f"{name}: new {sorted(layers - expected[name])}, gone {sorted(expected[name] - layers)}"
        )


def test_nothing_but_the_fuzzer_imports_the_command_line():
    users = {name for name, layers in import_graph().items() if "cli" in layers}
    assert users <= {"fuzzing", "__main__"}


def test_the_check_sees_lazy_imports_and_cycles(tmp_path):
    (tmp_path / "low.py").write_text(
        "from typing import TYPE_CHECKING\n"
        "if TYPE_CHECKING:\n    from sheafdeq.high import never\n"
        "def f():\n    from sheafdeq import middle\n"
    )
    (tmp_path / "middle").mkdir()
    (tmp_path / "middle" / "part.py").write_text("import sheafdeq.high.thing\n")
    (tmp_path / "high.py").write_text("x = 1\n")
    graph = import_graph(tmp_path)
    assert graph == {"low": {"middle"}, "middle": {"high"}, "high": set()}
    assert cycle_in(graph) == []
    (tmp_path / "high.py").write_text("def f():\n    from sheafdeq.low import f\n")
    assert cycle_in(import_graph(tmp_path)) == ["high", "low", "middle", "high"]
