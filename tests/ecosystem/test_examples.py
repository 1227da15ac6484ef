"""What stands in ``examples`` and ``integrations`` runs, where what it needs is installed."""

from __future__ import annotations

import ast
import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_geometric.data import Data

from scripts import ROOT, loaded
from sheafdeq import load_task
from sheafdeq.errors import DataError


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


def test_topobench_discovers_the_backbone_and_nothing_else() -> None:
    """It exports the public classes a file of its folder defines, under their own names."""
    module = loaded(BACKBONE)
    classes = {
        name
        for name, kind in inspect.getmembers(module, inspect.isclass)
        if kind.__module__ == module.__name__ and not name.startswith("_")
    }
    assert classes == {"SheafBackbone"}


class Wrapped(torch.nn.Module):
    """What TopoBench's ``GNNWrapper`` does with a backbone, with its residual connection."""

    def __init__(self, backbone: torch.nn.Module, out_channels: int) -> None:
        super().__init__()
        self.backbone, self.norm = backbone, torch.nn.LayerNorm(out_channels)

    def forward(self, data: Data) -> torch.Tensor:
        states = self.backbone(
            data.x_0,
            data.edge_index,
            batch=data.batch_0,
            edge_weight=data.get("edge_weight", None),
        )
        result: torch.Tensor = self.norm(states + data.x_0)
        return result


@pytest.mark.parametrize("weighted", [False, True])
def test_the_backbone_learns_inside_topobenchs_wrapper(weighted: bool) -> None:
    torch.manual_seed(0)
    edges = torch.tensor([[0, 1, 1, 2, 3, 4, 4, 5], [1, 0, 2, 1, 4, 3, 5, 4]])
    data = Data(x_0=torch.randn(6, 4), edge_index=edges, batch_0=torch.tensor([0] * 3 + [1] * 3))
    if weighted:
        data.edge_weight = torch.rand(8)
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    wrapped, readout = Wrapped(loaded(BACKBONE).SheafBackbone(4, 4), 4), torch.nn.Linear(4, 2)
    optimiser = torch.optim.Adam([*wrapped.parameters(), *readout.parameters()], lr=0.02)
    losses = []
    for _ in range(30):
        loss = torch.nn.functional.cross_entropy(readout(wrapped(data)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]


def sections(text: str) -> dict[str, dict[str, str]]:
    """Blocks of ``key: value`` lines under their headings: all the YAML our configuration uses."""
    found: dict[str, dict[str, str]] = {}
    for line in text.splitlines():
        name, _, value = line.split(" #")[0].strip().partition(": ")
        if line.startswith("  "):
            found[list(found)[-1]][name] = value
        elif line and not line.startswith("#"):
            found[name.rstrip(":")] = {"": value}
    return found


def test_the_topobench_configuration_builds_the_backbone() -> None:
    config = sections((ROOT / "integrations/topobench/sheafdeq.yaml").read_text())
    assert {"_target_", "model_name", "model_domain", "feature_encoder", "readout"} <= set(config)
    backbone = {name: value for name, value in config["backbone"].items() if name}
    assert backbone.pop("_target_") == "topobench.nn.backbones.SheafBackbone"
    width = config["feature_encoder"]["out_channels"]
    for part, option in (("backbone_wrapper", "out_channels"), ("readout", "hidden_dim")):
        assert config[part][option] == "${model.feature_encoder.out_channels}"
    numbers = {
        name: json.loads(width if value.startswith("${") else value)
        for name, value in backbone.items()
        if name != "layer"
    }
    made = loaded(BACKBONE).SheafBackbone(**numbers, layer=backbone["layer"])
    assert made.out_channels == int(width)


NOTEBOOK = ROOT / "examples" / "five_minutes.ipynb"


def notebook_names() -> dict[str, Any]:
    """What the cells leave behind, run without a kernel: they are ordinary Python."""
    names: dict[str, Any] = {"__name__": "notebook"}
    for cell in json.loads(NOTEBOOK.read_text())["cells"]:
        if cell["cell_type"] == "code":
            exec(compile("".join(cell["source"]), str(NOTEBOOK), "exec"), names)
    assert names["output"].solution.converged
    assert names["certificate"].verdict.value == "certified"
    assert names["difference"] < 1e-3
    return names


def test_the_notebook_runs_cell_by_cell(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("SHEAFDEQ_DATA", str(tmp_path))
    names = notebook_names()
    assert "stands in for it" in capsys.readouterr().out
    assert names["accuracy"] > 0.6


@pytest.mark.slow
def test_the_notebook_is_as_good_as_a_user_hopes_on_cora() -> None:
    try:
        load_task("cora", split=0)
    except DataError:
        pytest.skip("Cora is not here: sheafdeq tasks show cora --download")
    assert notebook_names()["accuracy"] > 0.83


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
