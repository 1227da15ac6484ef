"""Loss and gradients in parts are those of one process."""

from __future__ import annotations

import json
import random
import warnings
from typing import Any

import pytest
import torch
from partition_tools import EDGED, built, random_graph
from torch import Tensor

from sheafdeq.adjoints import Implicit, adjoint_from
from sheafdeq.cli import main
from sheafdeq.data.graph import Graph
from sheafdeq.distributed.gradient import Partitioned
from sheafdeq.distributed.in_process import InProcess
from sheafdeq.distributed.processes import Processes
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import BackwardWarning, InputError
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.solvers import Anderson, Picard, Solution
from sheafdeq.training.checkpoint import load_model

UNROLLED = [
    "sheafdeq",
    "sheafdeq-no-norm",
    "graph-attn-deq",
    "loop-transformer",
    "appnp",
    "ignn",
    "strong-sheaf",
    "strong-attention",
]


def loss_of(outputs: Tensor) -> Tensor:
    return (
        outputs.log_softmax(1)[:, 0]
        .mul(torch.linspace(0, 1, len(outputs), dtype=outputs.dtype))
        .sum()
        + outputs.square().mean()
    )


def single(
    model: EquilibriumModel, graph: Graph, solver: Picard
) -> tuple[float, dict[str, Tensor], Solution]:
    model.zero_grad()
    output = model.run(graph, solver=solver)
    loss = loss_of(output.logits)
    loss.backward()
    assert output.solution is not None
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return float(loss.detach()), gradients, output.solution


def parted(
    model: EquilibriumModel,
    graph: Graph,
    solver: Picard,
    engine: Any = "in-process",
    parts: Any = 3,
    **options: Any,
) -> tuple[float, dict[str, Tensor], Solution]:
    model.zero_grad()
    model.solver = solver
    with Partitioned(model, parts, engine=engine, method="ordered", **options) as partitioned:
        output = partitioned.run(graph)
        loss = loss_of(output.logits)
        loss.backward()
    assert output.solution is not None
    return (
        float(loss.detach()),
        {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None},
        output.solution,
    )


def agree(
    one: tuple[float, dict[str, Tensor], Solution], many: tuple[float, dict[str, Tensor], Solution]
) -> None:
    assert many[0] == pytest.approx(one[0], rel=1e-10)
    assert many[1].keys() == one[1].keys()
    for name, gradient in one[1].items():
        torch.testing.assert_close(
            many[1][name],
            gradient,
            rtol=1e-8,
            atol=1e-10,
            msg=lambda text, name=name: f"{name}: {text}",
        )
    assert many[2].status is one[2].status
    assert many[2].steps == one[2].steps


@pytest.mark.parametrize("name", UNROLLED)
def test_unrolled_gradients(name: str) -> None:
    model, graph = built(name), random_graph(40, 160, graphs=2)
    model.adjoint = adjoint_from("unrolled")
    solvers = [Picard(steps=5), Picard(steps=6, damping=0.6, undamped=1)]
    # graphs that stop at steps of their own
    if name in ("ignn", "appnp", "strong-sheaf", "strong-attention"):
        solvers.append(Picard(steps=200, tolerance=1e-3, stop_early=True))
    for solver in solvers:
        agree(
            single(model, graph, solver),
            parted(model, graph, solver, parts=lambda g: torch.arange(g.num_nodes) % 3),
        )


@pytest.mark.parametrize("name", ["ignn", "appnp", "strong-sheaf", "sheaf-cascade"])
def test_implicit_gradients(name: str) -> None:
    model, graph = built(name), random_graph(40, 160, graphs=2)
    model.adjoint = Implicit(Picard(2000, tolerance=1e-11, stop_early=True))
    solver = Picard(steps=3000, tolerance=1e-12, stop_early=True)
    one = single(model, graph, solver)
    many = parted(model, graph, solver, joint=True)
    agree(one, many)
    assert one[2].backward is not None
    assert many[2].backward is not None
    assert many[2].backward.status is one[2].backward.status


def test_edge_features_and_the_joint_cascade() -> None:
    model, graph = built("sheaf-cascade", EDGED), random_graph(40, 160, edge_dim=2)
    solver = Picard(steps=6)
    agree(single(model, graph, solver), parted(model, graph, solver, joint=True))


def test_processes_and_a_death_in_each_pass() -> None:
    model, graph = built("sheafdeq"), random_graph(40, 160)
    solver = Picard(steps=6)
    one = single(model, graph, solver)
    agree(one, parted(model, graph, solver, engine="local"))
    for passes in ("forward", "backward"):
        for engine in (InProcess, Processes):
            model.zero_grad()
            model.solver = solver
            with Partitioned(model, 3, engine=engine) as partitioned:
                team, _ = partitioned.team_of(graph)
                calls, draw = [0], random.Random(0)

                def killer(team: Any, calls: list[int] = calls, draw: random.Random = draw) -> None:
                    calls[0] += 1
                    if calls[0] == 5:
                        team.engine.kill(draw.randrange(3))

                team.watch = killer if passes == "forward" else None
                output = partitioned.run(graph)
                team.watch, calls[0] = killer, 0 if passes == "backward" else 10
                loss = loss_of(output.logits)
                loss.backward()
                assert sum(team.journal.restarts) == 1
            assert output.solution is not None
            agree(
                one,
                (
                    float(loss.detach()),
                    {n: p.grad for n, p in model.named_parameters() if p.grad is not None},
                    output.solution,
                ),
            )


def test_parts_judge_their_backward_solve_by_its_error_graph_by_graph() -> None:
    """A slow model with a small cotangent on one graph: the residual alone would pass at once."""
    model, graph = built("appnp", alpha=0.001), random_graph(40, 160, graphs=2)
    model.adjoint = Implicit(Picard(60, tolerance=1e-6, stop_early=True))
    solver = Picard(steps=100_000, tolerance=1e-10, stop_early=True)
    scale = torch.tensor([1.0, 1e-9], dtype=graph.x.dtype)[graph.graph_ids].unsqueeze(1)
    found = []
    for parts in (None, 3):
        model.zero_grad()
        model.solver = solver
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", BackwardWarning)
            if parts is None:
                output = model.run(graph)
                (output.logits * scale).sum().backward()
            else:
                with Partitioned(model, parts, engine="in-process") as partitioned:
                    output = partitioned.run(graph)
                    (output.logits * scale).sum().backward()
        assert output.solution is not None
        assert output.solution.backward is not None
        found.append(output.solution.backward)
    one, many = found
    assert one.distance == many.distance == "error-estimate"
    assert many.graph_status == one.graph_status
    assert not many.converged
    assert many.steps == one.steps
    assert many.evaluations == one.evaluations
    torch.testing.assert_close(many.graph_residual, one.graph_residual, rtol=1e-6, atol=0)


def test_a_failed_backward_solve_is_said() -> None:
    model, graph = built("ignn"), random_graph(40, 160)
    model.adjoint = Implicit(Picard(2, tolerance=1e-12, stop_early=True))
    with pytest.warns(BackwardWarning, match="not solved"):
        parted(model, graph, Picard(steps=300, tolerance=1e-10, stop_early=True))


def test_training_lowers_the_loss_and_scoring_records_nothing() -> None:
    model, graph = built("ignn"), random_graph(40, 160)
    optimiser = torch.optim.Adam(model.parameters(), lr=0.02)
    target = torch.randint(0, 2, (graph.num_nodes,))
    losses = []
    with Partitioned(model, 3, engine="in-process") as partitioned, warnings.catch_warnings():
        warnings.simplefilter("error")
        for _ in range(10):
            optimiser.zero_grad()
            loss = torch.nn.functional.cross_entropy(partitioned.run(graph).logits, target)
            loss.backward()
            optimiser.step()
            model.project()
            losses.append(float(loss.detach()))
        with torch.no_grad():
            assert not partitioned.run(graph).logits.requires_grad
    assert losses[-1] < losses[0]


def test_bad_input_is_named() -> None:
    with pytest.raises(InputError, match="joint=True"):
        Partitioned(built("sheaf-cascade"))
    with pytest.raises(InputError, match="Truncated"):
        Partitioned(built("sheafdeq", gradient="truncated:2"))
    with pytest.raises(InputError, match="use Picard"):
        Partitioned(SheafDEQ(3, 2, 2, 3, solver="anderson"))
    anderson = built("ignn")
    anderson.adjoint = Implicit(Anderson(100))
    with pytest.raises(InputError, match="use Picard"):
        Partitioned(anderson)
    with pytest.raises(InputError, match="no local_step"):
        Partitioned(built("energygnn"))


def test_the_train_command_in_parts_gives_the_scores_of_one_process(
    tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    task = [
        "--task",
        "community",
        "--level",
        "7",
        "--task-set",
        "nodes=30",
        "--task-set",
        "k=3",
        "--task-set",
        "train_seeds=[42]",
    ]
    arguments = [
        "train",
        *task,
        "--task-set",
        "test_seeds=[100]",
        "--model",
        "ignn",
        "--epochs",
        "4",
        "--dtype",
        "float64",
        "--json",
    ]
    found = []
    for more in ([], ["--parts", "3", "--engine", "in-process", "--save", str(tmp_path / "kept")]):
        assert main([*arguments, *more]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0]["scores"] == found[1]["scores"]
    assert found[0]["best_epoch"] == found[1]["best_epoch"]
    assert load_model(tmp_path / "kept").in_channels == 2
    for more, words in (
        (["--parts", "3", "--out", str(tmp_path)], "omit --out"),
        (["--parts", "3", "--residual-weight", "1"], "penalties"),
        (["--save", str(tmp_path)], "--parts"),
    ):
        assert main([*arguments, *more]) == 2
        assert words in capsys.readouterr().err
