"""Workers as Ray actors. Starting a cluster takes long, so these tests are slow ones: ``make
test-slow``."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from partition_tools import built, random_graph, solves_although_killed

from sheafdeq.distributed import infer
from sheafdeq.distributed.team import Team
from sheafdeq.errors import UsageError, WorkerError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def need_ray() -> None:
    """Without importing it: Ray reads its settings once."""
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs sheafdeq[distributed]")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """One cluster for all tests of this file, with a token and without dashboard."""
    need_ray()
    from sheafdeq.distributed.on_ray import import_ray, join_cluster

    found = import_ray()
    join_cluster(found, None)
    yield found
    found.shutdown()


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_actors_solve_and_come_back_when_killed(cluster: Any, mode: str) -> None:
    draw, last = random.Random(1), [0.0]

    def killer(team: Team) -> None:
        if team.solve and last[0] == 0.0:
            last[0] = time.monotonic()
        if last[0] and time.monotonic() - last[0] > 0.3 and sum(team.journal.restarts) < 2:
            last[0] = time.monotonic()
            team.engine.kill(draw.randrange(team.count))

    found = solves_although_killed(mode, "ray", killer)
    assert found.record["largest_staleness"] <= 4


def test_an_error_in_an_actor_and_a_missing_package_are_named(
    cluster: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from sheafdeq.distributed import on_ray

    wanted = on_ray.versions()
    monkeypatch.setattr(on_ray, "versions", lambda: {**wanted, "torch": "0.0"})
    with pytest.raises(WorkerError, match="install the same version everywhere"):
        infer(built("ignn"), random_graph(40, 160), 2, engine="ray")


def test_the_cluster_wants_a_token_and_has_no_dashboard(cluster: Any) -> None:
    assert os.environ["RAY_AUTH_MODE"] == "token"
    assert not cluster._private.worker._global_node.address_info.get("webui_url")


@pytest.mark.parametrize("address", ["127.0.0.1:1", "nowhere", "host:port"])
def test_no_cluster_at_the_address(address: str) -> None:
    need_ray()
    from sheafdeq.distributed.on_ray import join_cluster

    class NotRunning:
        @staticmethod
        def is_initialized() -> bool:
            return False

    with pytest.raises(UsageError, match="no Ray cluster could be joined at"):
        join_cluster(NotRunning, address)


def test_a_killed_driver_leaves_nothing_running(tmp_path: Path) -> None:
    need_ray()
    program = tmp_path / "driver.py"
    program.write_text(
        textwrap.dedent(
            """
            import torch
            from sheafdeq.data.graph import Graph
            from sheafdeq.distributed import infer
            from sheafdeq.testing import LinearAverage

            def watch(team):
                if team.solve:
                    print("running", flush=True)

            torch.manual_seed(0)
            graph = Graph.build(torch.randn(50, 3), torch.randint(0, 50, (2, 200)))
            infer(LinearAverage(3, 1), graph, 2, mode="async", engine="ray", steps=10**9,
            tolerance=1e-30, watch=watch)
            """
        )
    )
    mark = f"sheafdeq-test-{os.getpid()}-{time.time_ns()}"
    driver = subprocess.Popen(
        [sys.executable, str(program)],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "SHEAFDEQ_TEST_MARK": mark},
    )
    assert driver.stdout is not None
    while driver.stdout.readline().strip() != "running":
        assert driver.poll() is None
    driver.send_signal(signal.SIGKILL)
    driver.wait()
    driver.stdout.close()
    deadline = time.monotonic() + 120
    while (left := marked(mark)) and time.monotonic() < deadline:
        time.sleep(0.5)
    assert not left


def marked(mark: str) -> list[str]:
    """Living processes whose environment holds the mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                if mark.encode() in (entry / "environ").read_bytes():
                    found.append(
                        (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()[:120]
                    )
            except OSError:
                continue
    return found


def test_without_ray_the_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    with pytest.raises(UsageError, match=r"sheafdeq\[ray\]"):
        infer(built("ignn"), random_graph(40, 160), 2, engine="ray")
