"""The benchmark measures what it says: its peer is the same map, and its operation count is the
kernel's."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import sheafdeq
from sheafdeq.cli import main
from sheafdeq.data.community import community_graph
from sheafdeq.speed.message_passing import MessagePassingStep
from sheafdeq.speed.work import Work, operation_count


def test_the_peer_is_the_same_map_with_the_same_gradients() -> None:
    graph, _ = community_graph(42, level=7, nodes=60)
    work = Work(graph.to(torch.float32))
    work.model.double()
    double = graph.to(torch.float64)
    incidence = double.edges
    context = work.model.prepare(double)
    state = (torch.rand(60, 48, dtype=torch.float64) + 0.5).requires_grad_()
    peer = MessagePassingStep(work.model)
    ours = work.model.step(state, context)
    theirs = peer(state, context.drive, double.edge_index, incidence.degree, incidence.weight)
    torch.testing.assert_close(ours, theirs, rtol=1e-11, atol=1e-11)
    parameters = [
        state,
        *work.model.source_maps.parameters(),
        *work.model.target_maps.parameters(),
        work.model.stalk_mixing,
    ]
    weight = torch.randn_like(ours)
    for a, b in zip(
        torch.autograd.grad((ours * weight).sum(), parameters, retain_graph=True),
        torch.autograd.grad((theirs * weight).sum(), parameters),
        strict=True,
    ):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


def test_operations_are_counted_by_hand_for_one_edge_and_node() -> None:
    # d = q = h = 1: an edge costs 4 + 4 + 4 + 2 forward, 12 again, 8 + 4 + 16 + 4 backward; a node
    # 8 + 2 + 2, and thrice that
    count = operation_count(0, 1, 1, 1, 1, 1)
    assert (count["forward"], count["recomputed"], count["backward"]) == (14.0, 12.0, 32.0)
    count = operation_count(1, 0, 1, 1, 1, 2)
    assert count["forward"] == 2 * 12.0
    assert count["total"] == 4 * count["forward"]


def test_unknown_flags_are_usage_errors(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--fast"]) == 2
    assert "--fast" in capsys.readouterr().err


def test_it_runs_where_there_is_the_package_alone(tmp_path: Path) -> None:
    """As from an installed wheel: no file of the source tree is beside the package."""
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(Path(sheafdeq.__file__).parent, tmp_path / "sheafdeq", ignore=ignored)
    script = (
        "import sheafdeq, sys; from sheafdeq.speed.work import Work; "
        "from sheafdeq.data.community import community_graph; "
        "Work(community_graph(42, level=7, nodes=60)[0]).training_pass('pyg', warm=True); "
        "print(sheafdeq.__file__)"
    )
    done = subprocess.run(
        # Without `site`, which would lead an editable installation back to the source tree.
        [sys.executable, "-S", "-c", script],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), *filter(None, sys.path)])},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()) == tmp_path / "sheafdeq" / "__init__.py"


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_quick_run_reports_every_key(capsys: pytest.CaptureFixture[str], tmp_path: object) -> None:
    assert main(["bench", "--quick", "--json", "--out", str(tmp_path)]) == 0
    result = json.loads(capsys.readouterr().out)
    for key in (
        "speedup_over_pyg",
        "times_arithmetic_limit",
        "memory_ratio",
        "thread_scaling",
        "rows",
    ):
        assert key in result
    assert {"pyg", "reference"} <= {row["name"] for row in result["rows"]}
