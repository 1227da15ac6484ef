"""Synchronous and asynchronous equilibria in parts, in process and in processes, disturbed and
not."""

from __future__ import annotations

import os
import pickle
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from partition_tools import LOCAL, built, random_graph, reference, solves_although_killed
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.distributed import Faults, Pace, cut_graph, infer, infer_parts, yardstick_for
from sheafdeq.distributed.in_process import InProcess
from sheafdeq.distributed.message import Message
from sheafdeq.distributed.processes import Processes
from sheafdeq.distributed.team import Team
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError, WorkerError
from sheafdeq.models.mlp import MLP
from sheafdeq.solvers import Anderson, Picard, Status
from sheafdeq.testing import LinearAverage

# Models that contract for every weight (or by construction), so that every schedule has one answer.
GUARANTEED = ["ignn", "eignn", "appnp", "strong-sheaf", "strong-attention", "sheaf-cascade"]


def alive(pid: int) -> bool:
    """A zombie waits only for its parent to look."""
    try:
        with open(f"/proc/{pid}/stat") as stream:
            return stream.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


# ---------------------------------------------------------------------- synchronous


@pytest.mark.parametrize("name", LOCAL)
def test_synchronous_parts_solve_as_one_process_does(name: str) -> None:
    """Status, steps of every graph, residuals and outputs; a batch of graphs that finish at
    different times."""
    model, graph = built(name), random_graph(60, 200, graphs=3)
    for solver in (
        Picard(steps=12, tolerance=1e-6),
        Picard(
            steps=300,
            tolerance=1e-8,
            stop_early=True,
            damping=0.7,
            undamped=2,
            distance=model.solver.distance,
        ),
    ):
        expected, outputs = reference(model, graph, solver)
        found = infer(
            model, graph, torch.arange(60) % 4, engine="in-process", solver=solver, state=True
        )
        assert found.solution.status is expected.status
        assert found.solution.graph_status == expected.graph_status
        assert found.solution.graph_steps.tolist() == expected.graph_steps.tolist()
        assert found.solution.evaluations == expected.evaluations
        torch.testing.assert_close(found.solution.value, expected.value, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(found.outputs, outputs, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(
            torch.tensor(found.solution.residuals),
            torch.tensor(expected.residuals),
            rtol=1e-5,
            atol=1e-12,
        )


def test_where_sums_keep_their_order_the_numbers_are_bitwise_those_of_one_process() -> None:
    model, graph = built("ignn").float(), random_graph(200, 900).to(torch.float32)
    solver = Picard(steps=40, tolerance=1e-6, stop_early=True)
    expected, outputs = reference(model, graph, solver)
    found = infer(model, graph, 4, engine="local", solver=solver, state=True, method="ordered")
    assert torch.equal(found.solution.value, expected.value)
    assert torch.equal(found.outputs, outputs)
    assert found.solution.residuals == expected.residuals


def test_a_start_of_ones_own_and_no_steps() -> None:
    model, graph = built("ignn"), random_graph(40, 160)
    start = torch.rand(40, 6, dtype=torch.float64)
    solver = Picard(steps=0, tolerance=1e-6)
    found = infer(
        model, graph, 3, engine="in-process", solver=solver, initial_state=start, state=True
    )
    assert torch.equal(found.solution.value, start)
    assert found.solution.status is Status.MAX_STEPS


class Breaking(LinearAverage):
    """Finite for a while, then not, at one node."""

    def local_step(self, own: Tensor, received: Tensor, context: Any) -> Tensor:
        image = super().local_step(own, received, context)
        spike = (context.drive[:, :1] > 2.0) & (own[:, :1] != 0)
        return torch.where(spike, torch.full_like(image, torch.nan), image)


def test_non_finite_graphs_are_named_in_both_modes() -> None:
    torch.manual_seed(0)
    graph = random_graph(40, 160, graphs=2)
    model = Breaking(3, 2).double()
    with torch.no_grad():
        model.encoder.weight.zero_()
        model.encoder.bias.fill_(1.0)
        model.encoder.weight[0, 0] = 1.0
    x = graph.x.clone().clamp(-0.5, 0.5)
    x[3, 0] = 5.0  # graph 0
    graph = graph.with_features(x)
    solver = Picard(steps=60, tolerance=1e-9, stop_early=True)
    expected, _ = reference(model, graph, solver)
    assert expected.graph_status == (Status.NON_FINITE, Status.CONVERGED)
    found = infer(model, graph, 3, engine="in-process", solver=solver, state=True)
    assert found.solution.graph_status == expected.graph_status
    torch.testing.assert_close(found.solution.value, expected.value)
    free = infer(model, graph, 3, mode="async", engine="in-process", solver=solver, state=True)
    assert free.solution.status is Status.NON_FINITE
    assert bool(torch.isfinite(free.solution.value).all())


# ---------------------------------------------------------------------- asynchronous


@pytest.mark.parametrize("name", GUARANTEED)
@pytest.mark.parametrize("staleness", [0, 4])
def test_every_schedule_ends_at_the_equilibrium(name: str, staleness: int) -> None:
    model, graph = built(name), random_graph(50, 160, undirected=True)
    exact, _ = reference(model, graph, Picard(steps=5000, tolerance=1e-13, stop_early=True))
    yardstick = yardstick_for(model, graph)
    assert yardstick is not None
    for seed, faults in enumerate((Faults(), Faults(loss=0.4, duplication=0.3, delay=6, seed=1))):
        found = infer(
            model,
            graph,
            torch.arange(50) % 4,
            mode="async",
            engine="in-process",
            seed=seed,
            faults=faults,
            steps=3000,
            tolerance=1e-9,
            pace=Pace(staleness=staleness, report_seconds=0.0),
            yardstick=yardstick,
            state=True,
        )
        assert found.solution.status is Status.CONVERGED
        assert found.record["largest_staleness"] <= staleness
        assert found.record["late_reads"] == 0
        torch.testing.assert_close(found.solution.value, exact.value, rtol=1e-6, atol=1e-7)
        bound = found.record["bound"]["distance_at_most"]
        levels = len(bound)
        for level, (mine, theirs) in enumerate(
            zip(found.solution.value.chunk(levels, 1), exact.value.chunk(levels, 1), strict=True)
        ):
            difference = (
                (mine.log() - theirs.log()).abs()
                if yardstick.metric == "thompson"
                else (mine - theirs).abs()
            )
            if yardstick.metric == "block":
                difference = difference.norm(dim=1, keepdim=True)
            if yardstick.weights is not None:
                difference = difference / yardstick.weights
            assert float(difference.max()) <= bound[level] + 1e-11
            assert float(difference.max()) == pytest.approx(
                yardstick.distances(found.solution.value, exact.value)[level]
            )


def test_the_residual_is_that_of_the_returned_state() -> None:
    """The snapshot is exact: one evaluation of the whole map at the returned state gives the same
    number."""
    model, graph = built("sheafdeq"), random_graph(50, 160, undirected=True)
    found = infer(
        model, graph, 4, mode="async", engine="in-process", steps=30, tolerance=1e-14,
        pace=Pace(staleness=3, report_seconds=0.0), state=True,
    )  # fmt: skip
    with torch.no_grad():
        context = model.prepare(graph)
        residual = found.solution.tolerance and model.judged(model.solver).stopping.measure(
            model.step(found.solution.value, context), found.solution.value
        )
    assert float(residual.max()) == pytest.approx(found.solution.residual, rel=1e-9)


@pytest.mark.parametrize("staleness", [0, 1, 4])
def test_a_slow_part_never_breaks_the_bound_and_reporting_counts_what_does(staleness: int) -> None:
    model, graph = built("ignn"), random_graph(50, 160, undirected=True)

    def slow(parts: Any, model: EquilibriumModel) -> InProcess:
        return InProcess(parts, model, seed=5, faults=Faults(0.2, 0.2, 3), weights={0: 0.05})

    found = infer(
        model, graph, torch.arange(50) % 4, mode="async", engine=slow, steps=400, tolerance=1e-8,
        pace=Pace(staleness=staleness, report_seconds=0.0),
    )  # fmt: skip
    assert found.solution.status is Status.CONVERGED
    assert found.record["largest_staleness"] <= staleness
    assert found.record["seconds_waiting"] > 0
    late = infer(
        model, graph, torch.arange(50) % 4, mode="async", engine=slow, steps=400, tolerance=1e-8,
        pace=Pace(staleness=staleness, on_late="report", report_seconds=0.0),
    )  # fmt: skip
    assert late.record["largest_staleness"] > staleness
    assert late.record["late_reads"] > 0
    assert late.solution.status is Status.CONVERGED


def test_a_model_that_never_settles_says_so() -> None:
    class Swinging(LinearAverage):
        def local_step(self, own: Tensor, received: Tensor, context: Any) -> Tensor:
            return 1.0 + context.drive - own

    graph = random_graph(40, 160)
    model = Swinging(3, 1).double()
    found = infer(
        model, graph, 3, mode="async", engine="in-process", steps=500, pace=Pace(report_seconds=0.0)
    )
    assert found.solution.status in (Status.STAGNATED, Status.MAX_STEPS)
    assert found.solution.residual > 1e-3
    assert found.record["bound"]["known"].startswith("only the residual")


# ---------------------------------------------------------------------- deaths


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_deaths_in_process_change_nothing(mode: str) -> None:
    model, graph = built("ignn"), random_graph(50, 160, undirected=True)
    solver = Picard(steps=400, tolerance=1e-10, stop_early=True)
    expected, _ = reference(model, graph, solver)
    draw, calls = random.Random(3), [0]

    def killer(team: Team) -> None:
        calls[0] += 1
        if calls[0] % 7 == 0 and sum(team.journal.restarts) < 15:
            team.engine.kill(draw.randrange(team.count))

    found = infer(
        model, graph, torch.arange(50) % 4, mode=mode, engine="in-process", solver=solver,
        pace=Pace(staleness=2, report_seconds=0.0), state=True, watch=killer,
    )  # fmt: skip
    assert found.record["restarts"] >= 5
    assert found.solution.status is Status.CONVERGED
    if mode == "sync":
        torch.testing.assert_close(found.solution.value, expected.value, rtol=0, atol=1e-13)
        assert found.solution.steps == expected.steps
    else:
        torch.testing.assert_close(found.solution.value, expected.value, rtol=0, atol=1e-8)
        assert found.record["largest_staleness"] <= 2


def test_without_a_kept_state_a_synchronous_solve_begins_again() -> None:
    model, graph = built("ignn"), random_graph(50, 160, undirected=True)
    solver = Picard(steps=400, tolerance=1e-10, stop_early=True)
    expected, _ = reference(model, graph, solver)
    calls = [0]

    def killer(team: Team) -> None:
        calls[0] += 1
        if calls[0] == 40:
            assert isinstance(team.engine, InProcess)
            team.engine.office.states.clear()
            team.engine.kill(1)

    found = infer(model, graph, 4, engine="in-process", solver=solver, state=True, watch=killer)
    assert "restarted" in [event["what"] for event in found.record["events"]]
    torch.testing.assert_close(found.solution.value, expected.value, rtol=0, atol=1e-13)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_processes_that_are_killed_come_back(mode: str) -> None:
    draw, last, pids = random.Random(1), [time.monotonic()], []

    def killer(team: Team) -> None:
        assert isinstance(team.engine, Processes)
        pids.extend(pid for pid in team.engine.pids() if pid is not None)
        if time.monotonic() - last[0] > 0.1 and sum(team.journal.restarts) < 4:
            last[0] = time.monotonic()
            team.engine.kill(draw.randrange(team.count))

    solves_although_killed(mode, "local", killer)
    assert not [pid for pid in pids if alive(pid)]


def test_faults_between_processes() -> None:
    model, graph = built("ignn"), random_graph(80, 300, undirected=True)
    exact, _ = reference(model, graph, Picard(steps=5000, tolerance=1e-13, stop_early=True))
    found = infer(
        model,
        graph,
        3,
        mode="async",
        engine="local",
        steps=3000,
        tolerance=1e-9,
        faults=Faults(0.3, 0.2, 4),
        pace=Pace(staleness=1, slowdown={0: 50.0}),
        state=True,
    )
    assert found.solution.status is Status.CONVERGED
    assert found.record["largest_staleness"] <= 1
    torch.testing.assert_close(found.solution.value, exact.value, rtol=1e-6, atol=1e-7)


def test_a_killed_driver_leaves_nobody_behind(tmp_path: Any) -> None:
    program = tmp_path / "driver.py"
    program.write_text(
        textwrap.dedent(
            """
            import sys, time, torch
            from sheafdeq.data.graph import Graph
            from sheafdeq.distributed import Pace, infer
            from sheafdeq.testing import LinearAverage

            def watch(team):
                print(" ".join(str(pid) for pid in team.engine.pids()), flush=True)

            if __name__ == "__main__":
                torch.manual_seed(0)
                graph = Graph.build(torch.randn(50, 3), torch.randint(0, 50, (2, 200)))
                infer(LinearAverage(3, 1), graph, 3, mode="async", steps=10**9, tolerance=1e-30,
                watch=watch)
            """
        )
    )
    driver = subprocess.Popen([sys.executable, str(program)], stdout=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    pids: list[int] = []
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        words = driver.stdout.readline().split()
        if len(words) == 3 and "None" not in words:
            pids = [int(word) for word in words]
            if all(alive(pid) for pid in pids) and time.monotonic() > deadline - 118:
                break
    assert pids
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    deadline = time.monotonic() + 20
    while any(alive(pid) for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not [pid for pid in pids if alive(pid)]


# ---------------------------------------------------------------------- parts from files, odd
# shapes


def test_parts_from_files_need_no_whole_graph(tmp_path: Any) -> None:
    model, graph = built("ignn"), random_graph(50, 160, undirected=True)
    paths = []
    for part in cut_graph(graph, torch.arange(50) % 3):
        part.save(tmp_path / f"{part.number}.part")
        paths.append(tmp_path / f"{part.number}.part")
    solver = Picard(steps=400, tolerance=1e-8, stop_early=True)
    _, outputs = reference(model, graph, solver)
    found = infer_parts(model, paths, engine="local", solver=solver)
    torch.testing.assert_close(found.outputs, outputs, rtol=0, atol=1e-12)
    silent = infer_parts(model, paths, engine="in-process", solver=solver, outputs=False)
    assert silent.outputs.numel() == 0
    assert silent.solution.converged


def shapes() -> dict[str, tuple[Graph, Tensor]]:
    lonely = Graph.build(
        torch.randn(4, 3, dtype=torch.float64), torch.empty(2, 0, dtype=torch.int64)
    )
    path = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 3, 4, 5]])
    line = Graph.build(torch.randn(6, 3, dtype=torch.float64), path)
    return {
        "no edges": (lonely, torch.tensor([0, 1, 1, 2])),
        "one way": (line, torch.tensor([0, 0, 1, 1, 2, 2])),
        "a node each": (line, torch.arange(6)),
        "uneven": (line, torch.tensor([0, 0, 0, 0, 0, 1])),
        "one part": (line, torch.zeros(6, dtype=torch.int64)),
    }


@pytest.mark.parametrize("shape", ["no edges", "one way", "a node each", "uneven", "one part"])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_odd_shapes(shape: str, mode: str) -> None:
    torch.manual_seed(0)
    graph, assignment = shapes()[shape]
    model = LinearAverage(3, 1, rate=0.7).double()
    found = infer(
        model, graph, assignment, mode=mode, engine="in-process", steps=500, tolerance=1e-11,
        pace=Pace(report_seconds=0.0), state=True,
    )  # fmt: skip
    assert found.solution.status is Status.CONVERGED
    torch.testing.assert_close(found.solution.value, model.exact(graph), rtol=0, atol=1e-9)


# ---------------------------------------------------------------------- bad input


class Looking(LinearAverage):
    """Subtracts the mean of all nodes: no part knows it."""

    def prepare(self, graph: Graph) -> Any:
        context = super().prepare(graph)
        return replace(context, drive=context.drive - context.drive.mean(0))


def test_bad_input_is_named_before_work_starts() -> None:
    graph, model = random_graph(40, 160), built("ignn")
    cases: list[tuple[Callable[[], Any], str]] = [
        (lambda: infer(built("energygnn"), graph, 2), "no local_step"),
        (lambda: infer(built("sheaf-relay"), graph, 2), "local_prepare is False"),
        (lambda: infer(Looking(3, 1).double(), graph, 2), "looks beyond"),
        (lambda: infer(MLP(3, 2).double(), graph, 2), "not an equilibrium"),  # type: ignore[arg-type]
        (lambda: infer(model, graph, 41), "at most 40"),
        (lambda: infer(model, graph, torch.zeros(3, dtype=torch.int64)), "each of the 40 nodes"),
        (lambda: infer(model, graph, torch.full((40,), 2)), "is empty"),
        (lambda: infer(model, graph, 2, mode="sometimes"), "mode is"),
        (lambda: infer(model, graph, 2, engine="steam"), "unknown engine"),
        (lambda: infer(model, graph, 2, solver=Anderson(steps=5)), "use Picard"),
        (lambda: infer(model, random_graph(40, 160).to(torch.float32), 2), "float32"),
        (lambda: infer_parts(model, []), "no parts"),
        (
            lambda: infer(
                model, graph, 2, mode="async", engine="in-process", pace=Pace(slowdown={7: 2.0})
            ),
            "no part 7",
        ),
        (lambda: Pace(staleness=-1), "staleness"),
        (lambda: Pace(on_late="hope"), "on_late"),
        (lambda: Pace(slowdown={0: 0.5}), "at least 1"),
        (lambda: Faults(loss=1.0), "probability"),
    ]
    for call, words in cases:
        with pytest.raises(InputError, match=words):
            call()


def test_a_worker_of_another_version_is_refused() -> None:
    class Older(InProcess):
        def revive(self, part: int) -> None:
            super().revive(part)
            self.events[-1] = (
                part,
                Message(
                    "hello", {"sheafdeq": "0.0.1", "torch": torch.__version__, "python": "3.11"}
                ),
            )

    with pytest.raises(WorkerError, match=r"runs sheafdeq 0\.0\.1"):
        infer(built("ignn"), random_graph(40, 160), 2, engine=Older)


def test_an_error_in_a_worker_reaches_the_caller() -> None:
    class Failing(LinearAverage):
        def local_step(self, own: Tensor, received: Tensor, context: Any) -> Tensor:
            raise RuntimeError("on purpose")

    with pytest.raises(WorkerError, match=r"part \d: RuntimeError: on purpose"):
        infer_parts(
            Failing(3, 1).double(),
            cut_graph(random_graph(40, 160), torch.arange(40) % 2),
            engine="in-process",
        )


def test_messages_are_not_executed(tmp_path: Any) -> None:
    class Payload:
        def __reduce__(self) -> Any:
            return os.system, (f"touch {tmp_path}/executed",)

    for data in (pickle.dumps(Payload()), b"", b"\x00" * 64, b"not a message at all"):
        with pytest.raises(WorkerError, match="not a message"):
            Message.decode(data)
    assert not (tmp_path / "executed").exists()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_time_can_be_over(mode: str) -> None:
    """A slow part, half a second: the state that is returned is the one whose residual is
    reported."""
    model, graph = built("ignn"), random_graph(50, 160, undirected=True)
    begun = time.monotonic()
    found = infer(
        model,
        graph,
        3,
        mode=mode,
        engine="in-process",
        steps=10**6,
        tolerance=1e-30,
        seconds=0.5,
        slowdown={0: 300.0},
        state=True,
        pace=Pace(report_seconds=0.0),
    )
    assert time.monotonic() - begun < 30
    assert found.solution.status is Status.MAX_STEPS
    with torch.no_grad():
        residual = model.solver.stopping.measure(
            model.step(found.solution.value, model.prepare(graph)), found.solution.value
        )
    assert float(residual.max()) == pytest.approx(found.solution.residual, rel=1e-6, abs=1e-15)
