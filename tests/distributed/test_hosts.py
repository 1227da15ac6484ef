"""Hosts that are really apart: three network namespaces, a Ray node in each, 20 ms of delay and 1 %
loss between them.

    make test-slow, or: pytest -m slow tests/distributed/test_hosts.py
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import tempfile
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from slow_network import address, kill_inside, make, missing_rights, processes_inside, remove

pytestmark = pytest.mark.slow
PORT = 6399

DRIVER = textwrap.dedent(
    """
    import json, sys, time
    import torch
    from sheafdeq.data.graph import Graph
    from sheafdeq.distributed import Pace, infer
    from sheafdeq.models.sheaf_cascade import SheafCascade
    from sheafdeq.solvers import Picard

    address, mark = sys.argv[1:]
    torch.manual_seed(0)
    torch.set_num_threads(1)
    edges = torch.randint(0, 300, (2, 900))
    graph = Graph.build(torch.randn(300, 3).double(), torch.cat([edges, edges.flip(0)], dim=1))
    model = SheafCascade(3, 2, 2, 4, levels=3).double().eval()
    with torch.no_grad():
        exact = model.solve(model.prepare(graph), graph, solver=Picard(steps=5000, tolerance=1e-13,
        stop_early=True))
    seen = []

    def watch(team):
        if mark != "-" and not seen and team.solve and all(len(c) > 2 for c in
        team.journal.courses):
            seen.append(True)
            print("running", flush=True)
            time.sleep(1.0)  # the other side pulls the plug now

    found = infer(model, graph, 4, mode="async", engine="ray", ray_address=address, steps=20000,
                  tolerance=1e-13 if mark != "-" else 1e-9, pace=Pace(staleness=4, keep_every=5),
                  state=True, watch=watch)
    distance = float(((found.solution.value - exact.value).abs() / exact.value.abs()).max())
    print(json.dumps({"distance": distance, "status": found.solution.status.label, "restarts":
    found.record["restarts"],
                      "staleness": found.record["largest_staleness"], "seconds":
                      found.record["seconds"], "messages": found.record["messages"], "bytes":
                      found.record["message_bytes"], "waiting": found.record["seconds_waiting"]}),
                      flush=True)
    """
)


@pytest.fixture
def hosts() -> Iterator[list[str]]:
    """Three namespaces on a slow wire."""
    reason = missing_rights()
    if reason is not None:
        pytest.skip(reason)
    if importlib.util.find_spec("ray") is None:
        pytest.skip("needs sheafdeq[distributed]")
    names = [f"sheafdeq-{os.getpid()}-{number}" for number in range(3)]
    make(names)
    wire = subprocess.Popen(
        [
            sys.executable,
            str(Path(__file__).with_name("slow_network.py")),
            *names,
            "--delay",
            "0.02",
            "--loss",
            "0.01",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert wire.stdout is not None
        assert wire.stdout.readline().strip() == "ready"
        yield names
    finally:
        remove(names)
        wire.kill()
        wire.wait()
        assert wire.stdout is not None
        wire.stdout.close()


def environment(token: str) -> dict[str, str]:
    return {
        **os.environ,
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN": token,
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "OMP_NUM_THREADS": "1",
    }


def ray_node(name: str, number: int, token: str, folder: str) -> None:
    command = [
        "ip",
        "netns",
        "exec",
        name,
        sys.executable,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--num-cpus",
        "1",
    ]
    command += [
        "--node-ip-address",
        address(number),
        "--disable-usage-stats",
        "--object-store-memory",
        "100000000",
    ]
    if number == 0:
        command += [
            "--head",
            "--port",
            str(PORT),
            "--include-dashboard=false",
            "--temp-dir",
            folder,
        ]
    else:
        command += ["--address", f"{address(0)}:{PORT}"]
    done = subprocess.run(
        command, env=environment(token), capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout[-1500:] + done.stderr[-1500:]


@pytest.mark.timeout(1800)
def test_three_hosts_with_delay_and_loss_and_one_of_them_lost(hosts: list[str]) -> None:
    token = secrets.token_hex(32)
    ping = subprocess.run(
        ["ip", "netns", "exec", hosts[0], "ping", "-c", "3", address(1)],
        capture_output=True,
        text=True,
    )
    if "min/avg/max" in ping.stdout:
        assert float(ping.stdout.rsplit("=", 1)[1].split("/")[1]) >= 40.0  # there and back
    with tempfile.TemporaryDirectory(prefix="sdq") as folder:
        for number, name in enumerate(hosts):
            ray_node(name, number, token, folder)
        results = []
        for mark in ("-", "kill"):
            driver = subprocess.Popen(
                [
                    "ip",
                    "netns",
                    "exec",
                    hosts[0],
                    sys.executable,
                    "-c",
                    DRIVER,
                    f"{address(0)}:{PORT}",
                    mark,
                ],
                env=environment(token),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            assert driver.stdout is not None
            assert driver.stderr is not None
            if mark == "kill":
                while "running" not in (line := driver.stdout.readline()):
                    assert line, driver.stderr.read()[-3000:]
                kill_inside(hosts[2])
            out, errors = driver.communicate(timeout=900)
            assert driver.returncode == 0, errors[-3000:]
            results.append(json.loads(out.strip().splitlines()[-1]))
    for result in results:
        assert result["status"] == "converged"
        assert result["distance"] < 1e-6
        assert result["staleness"] <= 4
    assert results[1]["restarts"] >= 1
    if target := os.environ.get("SHEAFDEQ_HOSTS_RECORD"):
        write_record(Path(target), results)
    for name in hosts:
        kill_inside(name)
        assert not processes_inside(name)


def write_record(path: Path, results: list[dict[str, object]]) -> None:
    """For ``results/distributed``: what the two runs needed."""
    from sheafdeq.records import write_sealed

    payload = {
        "study": "hosts",
        "command": "SHEAFDEQ_HOSTS_RECORD=FILE pytest -m slow tests/distributed/test_hosts.py",
        "hosts": 3,
        "delay_seconds": 0.02,
        "loss": 0.01,
        "undisturbed": results[0],
        "one host killed": results[1],
        "time": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
    with contextlib.suppress(FileExistsError):
        path.parent.mkdir(parents=True)
    write_sealed(path, payload)
