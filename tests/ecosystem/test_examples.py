"""What stands in ``examples`` and ``integrations`` runs, where what it needs is installed."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
from pathlib import Path
from types import ModuleType

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def loaded(path: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_plain_loop_learns() -> None:
    assert loaded("examples/training/plain_loop.py").main() > 0.8


@pytest.mark.filterwarnings("ignore")  # Lightning's remarks on workers and loggers
def test_the_lightning_module_trains_and_counts_solves() -> None:
    pytest.importorskip("lightning", reason="pip install lightning")
    module = loaded("examples/training/lightning_module.py")
    text = (ROOT / "examples/training/lightning_module.py").read_text()
    (kind,) = (node for node in ast.parse(text).body if isinstance(node, ast.ClassDef))
    assert kind.end_lineno is not None
    assert kind.end_lineno - kind.lineno < 40
    found = module.main(epochs=3, nodes=90)
    assert {"train_loss", "validation_accuracy", "validation_converged"} <= set(found)
    assert found["train_accuracy"] > 1 / 3


@pytest.mark.filterwarnings("ignore")
def test_an_optuna_study_reads_back_what_was_computed(tmp_path: Path) -> None:
    pytest.importorskip("optuna", reason="pip install optuna")
    module = loaded("examples/training/optuna_sweep.py")
    first = module.main(tmp_path, trials=2, epochs=2, nodes=60)
    runs = sorted(path.name for path in tmp_path.iterdir() if (path / "record.json").exists())
    assert {trial.user_attrs["run"] for trial in first.trials} == set(runs)
    again = module.main(tmp_path, trials=2, epochs=2, nodes=60)
    assert [t.value for t in again.trials] == [t.value for t in first.trials]


BACKBONE = "integrations/topobench/sheafdeq_backbone.py"


def test_the_topobench_backbone_has_the_interface() -> None:
    module = loaded(BACKBONE)
    signature = inspect.signature(module.SheafBackbone.forward)
    assert list(signature.parameters) == ["self", "x", "edge_index", "batch", "edge_weight"]
    assert [p.default for p in signature.parameters.values()][3:] == [None, None]
    tree = ast.parse((ROOT / BACKBONE).read_text())
    imports = {
        (node.module or "").split(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
    }
    assert imports == {"__future__", "sheafdeq"}
    x, edges = torch.randn(7, 5), torch.tensor([[0, 1, 1, 2, 4, 5], [1, 0, 2, 1, 5, 4]])
    batch = torch.tensor([0, 0, 0, 0, 1, 1, 1])
    for layer in module.LAYERS:
        torch.manual_seed(0)
        backbone = module.SheafBackbone(5, 6, num_layers=2, layer=layer)
        states = backbone(x, edges, batch=batch, edge_weight=torch.ones(6))
        assert states.shape == (7, 6)
        assert torch.allclose(states, backbone(x, edges), atol=1e-5)
        states.sum().backward()
        assert all(p.grad is not None for p in backbone.parameters())
    with pytest.raises(ValueError, match="sheafdeq, sheaf-cascade"):
        module.SheafBackbone(5, 6, layer="sheaf")


def test_the_topobench_configuration_builds_the_backbone() -> None:
    yaml = pytest.importorskip("yaml", reason="pip install pyyaml")
    config = yaml.safe_load((ROOT / "integrations/topobench/sheafdeq.yaml").read_text())
    assert set(config) >= {"_target_", "model_name", "model_domain", "feature_encoder", "readout"}
    backbone = config["backbone"]
    place = backbone.pop("_target_").split(".")
    assert place[-2:] == [Path(BACKBONE).stem, "SheafBackbone"]
    width = config["feature_encoder"]["out_channels"]
    numbers = {
        name: width if isinstance(value, str) and value.startswith("${") else value
        for name, value in backbone.items()
    }
    assert loaded(BACKBONE).SheafBackbone(**numbers).out_channels == width


NOTEBOOK = ROOT / "examples" / "five_minutes.ipynb"


def test_the_notebook_runs_cell_by_cell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Without a kernel, on the graph that stands in for Cora: the cells are ordinary Python."""
    monkeypatch.setenv("SHEAFDEQ_DATA", str(tmp_path))
    names: dict[str, object] = {"__name__": "notebook"}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
    printed = capsys.readouterr().out
    assert "stands in for it" in printed
    assert names["accuracy"] > 0.6  # type: ignore[operator]
    assert names["output"].solution.converged  # type: ignore[attr-defined]
    assert names["certificate"].verdict.value == "certified"  # type: ignore[attr-defined]
    assert names["difference"] < 1e-3  # type: ignore[operator]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_the_notebook_executes_in_a_kernel(tmp_path: Path) -> None:
    nbformat = pytest.importorskip("nbformat", reason="pip install nbclient ipykernel")
    nbclient = pytest.importorskip("nbclient", reason="pip install nbclient ipykernel")
    pytest.importorskip("ipykernel", reason="pip install nbclient ipykernel")
    book = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(book)
    nbclient.NotebookClient(book, timeout=300, resources={"metadata": {"path": tmp_path}}).execute()
    texts = [out.get("text", "") for cell in book.cells for out in cell.get("outputs", [])]
    assert any("certified" in text for text in texts)
