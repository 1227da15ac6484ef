"""``sheafdeq bench``: how fast and how small the fused step is, beside its peers, on this machine,
now."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

__all__ = ["configure", "run"]

STEPS = 20
MODELS = (
    "ignn",
    "eignn",
    "appnp",
    "graph-attn-deq",
    "loop-transformer",
    "strong-sheaf",
    "sheaf-cascade",
    "dnsd",
    "nsd",
)
# equal depth and maps
OPTIONS: dict[str, dict[str, Any]] = {
    "nsd": {"maps": "full", "layers": STEPS},
    "dnsd": {"maps": "full"},
}
SCALES = (10**4, 10**5, 10**6, 10**7)


def configure(commands: Any) -> None:
    """Add the command."""
    parser = commands.add_parser(
        "bench",
        help="time and memory of the fused step against its peers",
        description=(
            "Forward and backward of 20 SheafDEQ steps on the six community graphs: the fused "
            "kernel, its pure PyTorch twin, "
            "straightforward PyG message passing (also compiled), and the other models at equal "
            "sizes. One process, alternating, "
            "minimum of several runs; memory in processes of their own. Wants an otherwise idle "
            "machine."
        ),
    )
    parser.add_argument(
        "--json", action="store_true", help="print one JSON object instead of the table"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="fewer repetitions, no compilation, small graphs only (about a minute)",
    )
    parser.add_argument(
        "--scale",
        action="store_true",
        help="also 10^7 edges: a training step on 10^6 nodes (minutes, about 12 GiB)",
    )
    parser.add_argument(
        "--out", type=Path, metavar="DIR", help="write bench.json and the figures there"
    )
    # the child process that measures memory, or one scale
    parser.add_argument("--measure", metavar="NAME", help=argparse.SUPPRESS)
    parser.set_defaults(run=run)


def run(options: argparse.Namespace) -> int:
    """Measure, print, and write."""
    if options.measure:
        kind, _, size = options.measure.partition(":")
        print(
            json.dumps(
                _scale_row(int(size)) if kind == "scale" else _memory_of(kind, options.quick)
            )
        )
        return 0
    result = measure(quick=options.quick, scale=options.scale)
    if options.out:
        from sheafdeq.records import write_bytes

        options.out.mkdir(parents=True, exist_ok=True)
        write_bytes(options.out / "bench.json", (json.dumps(result, indent=2) + "\n").encode())
        _draw(result, options.out)
    print(json.dumps(result, indent=2) if options.json else _table(result))
    return 0


# ---------------------------------------------------------------------- what is measured


def measure(*, quick: bool = False, scale: bool = False) -> dict[str, Any]:
    """Everything the command reports, as plain data."""
    import torch

    from sheafdeq.kernels.native_module import native_available, native_description

    before = torch.get_num_threads()
    rounds = 2 if quick else 5
    graph = community_batch(quick)
    work = Work(graph)
    names = ["pyg", "reference", *(["native"] if native_available() else [])]
    notes: list[str] = []
    if not quick:
        try:
            work.step("compiled")(work.state, work.drive)
            names.append("compiled")
        except (
            Exception
        ) as error:  # a machine without a working compiler for PyTorch: say so and go on
            notes.append(f"torch.compile of the peer failed here: {type(error).__name__}")
    try:
        torch.set_num_threads(1)
        peaks = []
        seconds: dict[str, float] = {}
        for round_number in range(rounds):
            peaks.append(_peak_rate())
            for name in names:
                if name in ("pyg", "reference", "compiled") and round_number >= 3:
                    continue  # slow rows: three runs are enough for a minimum
                seconds[name] = min(
                    seconds.get(name, float("inf")), _clock(partial(work.training_pass, name))
                )
        threads = min(2, os.cpu_count() or 1)
        scaling = None
        if "native" in seconds and threads > 1:
            pair = {1: float("inf"), threads: float("inf")}
            for _ in range(rounds):
                for count in pair:
                    torch.set_num_threads(count)
                    work.training_pass("native", warm=True)
                    pair[count] = min(pair[count], _clock(partial(work.training_pass, "native")))
            torch.set_num_threads(1)
            seconds["native"] = min(seconds["native"], pair[1])
            seconds[f"native, {threads} threads"] = pair[threads]
            scaling = pair[1] / pair[threads]
        models = _model_rows(graph, 1 if quick else 2)
        sizes = SCALES[:2] if quick else SCALES[: 4 if scale else 3]
        growth = (
            [_in_child(f"scale:{size}", quick) for size in sizes] if "native" in seconds else []
        )
    finally:
        torch.set_num_threads(before)
    memory: dict[str, int] = {
        name: _memory_in_child(name, quick)
        for name in ("pyg", "reference", "native")
        if name in seconds
    }
    fastest = seconds.get("native")
    operations = operation_count(graph.num_nodes, graph.num_edges, work.d, work.q, work.h, STEPS)
    rate = max(peaks)
    rows = [
        {
            "name": name,
            "seconds": value,
            "speedup_over_pyg": seconds["pyg"] / value,
            "memory_bytes": memory.get(name),
        }
        for name, value in seconds.items()
    ]
    return {
        "speedup_over_pyg": seconds["pyg"] / fastest if fastest else None,
        "times_arithmetic_limit": fastest * rate / operations["total"] if fastest else None,
        "times_arithmetic_limit_without_recomputation": (
            fastest * rate / (operations["total"] - operations["recomputed"]) if fastest else None
        ),
        "memory_ratio": memory["pyg"] / max(memory["native"], 1) if "native" in memory else None,
        "thread_scaling": scaling,
        "growth": max(r["nanoseconds_per_edge"] for r in growth)
        / min(r["nanoseconds_per_edge"] for r in growth)
        if growth
        else None,
        "rows": rows,
        "models": models,
        "scales": growth,
        "operations": operations,
        "peak_operations_per_second": rate,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "steps": STEPS,
        "machine": _machine(),
        "kernel": native_description(),
        "notes": notes,
    }


def community_batch(quick: bool = False) -> Any:
    """The six training graphs of the community benchmark as one graph (one of them when quick)."""
    from sheafdeq.data.community import community_graph
    from sheafdeq.data.graph import Graph

    return Graph.union(
        [community_graph(seed, level=7)[0] for seed in range(42, 43 if quick else 48)]
    )


def operation_count(n: int, e: int, d: int, q: int, h: int, steps: int) -> dict[str, float]:
    """Floating point operations of forward and backward; a multiply-add counts two, comparisons and
    roots nothing.

    An edge: forward, sums of three hidden rows (2h), both second layers, two d x d products, one
    message. Backward: the hidden rows, second layers and map products again (recomputed, because
    nothing of the size of the edges is kept), then gradients of hidden rows, of second layers, of
    the maps, and of the values. A node: first layers, values, and twice as much backward, with the
    forward products again.
    """
    c, maps = d * q, d * d
    hidden, second, products, message = 4.0 * h, 4.0 * maps * h, 4.0 * d**3, 2.0 * maps * q
    edge_forward = hidden + second + products + message
    edge_again = hidden + second + products
    edge_backward = 2 * second + 2 * message + 4 * products + 4.0 * h
    node_forward = 2.0 * c * 4 * h + 2.0 * c * q + 2.0 * c * d
    node_again = node_forward
    node_backward = 2 * node_forward
    forward, again, backward = (
        steps * (e * edge + n * node)
        for edge, node in (
            (edge_forward, node_forward),
            (edge_again, node_again),
            (edge_backward, node_backward),
        )
    )
    return {
        "forward": forward,
        "recomputed": again,
        "backward": backward,
        "total": forward + again + backward,
    }


class Work:
    """One SheafDEQ on one graph, and its training pass by each route."""

    def __init__(self, graph: Any) -> None:
        import torch

        from sheafdeq.models.sheaf_deq import SheafDEQ
        from sheafdeq.recurrence import Incidence

        torch.manual_seed(0)
        self.graph, self.incidence = graph, Incidence.of(graph)
        self.model = SheafDEQ(graph.x.shape[1], 3)
        self.d, self.q = self.model.stalk_dim, self.model.channels
        self.h = self.d * self.q
        prepared = self.model.prepare(graph)
        self.drive = prepared.drive.detach()
        self.context = replace(prepared, drive=self.drive)
        self.state = self.model.initial_state(self.context).detach()
        self._steps: dict[str, Callable[..., Any]] = {}

    def step(self, name: str) -> Callable[..., Any]:
        """(state, drive) -> state by the route ``name``."""
        if name not in self._steps:
            self._steps[name] = self._make(name)
        return self._steps[name]

    def _make(self, name: str) -> Callable[..., Any]:
        import torch

        from sheafdeq.kernels.native_module import use_kernel

        if name in ("pyg", "compiled"):
            peer = _peer().MessagePassingStep(self.model)
            edge_index, incidence = self.graph.edge_index, self.incidence
            call = torch.compile(peer) if name == "compiled" else peer
            return lambda state, drive: call(
                state, drive, edge_index, incidence.degree, incidence.edge_weight
            )

        def step(state: Any, drive: Any) -> Any:
            with use_kernel(name):
                return self.model.step(state, self.context)

        return step

    def training_pass(self, name: str, *, warm: bool = False) -> None:
        """Twenty steps forward, and backward to every parameter (two when only warming up)."""
        step, state = self.step(name), self.state
        for _ in range(2 if warm else STEPS):
            state = step(state, self.drive)
        self.model.zero_grad(set_to_none=True)
        state.sum().backward()


def _peer() -> Any:
    """The module ``benchmarks/message_passing.py`` of the source tree."""
    import importlib.util

    import sheafdeq
    from sheafdeq.errors import DataError

    path = Path(sheafdeq.__file__).resolve().parents[2] / "benchmarks" / "message_passing.py"
    if not path.is_file():
        raise DataError(
            "the comparison code lives in benchmarks/ of the source tree, which is "
            "not here: run bench from a checkout"
        )
    if "sheafdeq_message_passing" in sys.modules:
        return sys.modules["sheafdeq_message_passing"]
    spec = importlib.util.spec_from_file_location("sheafdeq_message_passing", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["sheafdeq_message_passing"] = module
    spec.loader.exec_module(module)
    return module


def _clock(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def _peak_rate() -> float:
    """Operations a second of a large matrix product: the arithmetic the machine can really do, one
    thread."""
    import torch

    size = 1536
    a, b = torch.rand(size, size), torch.rand(size, size)
    a @ b
    return 2.0 * size**3 / min(_clock(lambda: a @ b) for _ in range(4))


def _model_rows(graph: Any, repeats: int) -> list[dict[str, Any]]:
    """A training pass of every model at the community sizes (c = 48, K = 20), fused SheafDEQ
    first."""
    import torch

    from sheafdeq.registry import COMMUNITY, build_model
    from sheafdeq.registry import MODELS as REGISTERED

    rows = []
    for name in ("sheafdeq", *MODELS):
        if name not in REGISTERED:
            continue
        torch.manual_seed(0)
        model = build_model(name, COMMUNITY, **OPTIONS.get(name, {}))

        def training_pass(model: Any = model) -> None:
            model.zero_grad(set_to_none=True)
            model.run(graph).logits.sum().backward()

        training_pass()
        rows.append({"name": name, "seconds": min(_clock(training_pass) for _ in range(repeats))})
    return rows


def _scale_row(edges: int) -> dict[str, Any]:
    """Time per edge of a training pass on about ``edges`` stored edges: community graphs side by
    side.

    Runs in a process of its own, so that the peak is that of this row alone (with the interpreter
    and PyTorch). Every row is
    warm: some steps forward and backward come first, so that the tables which live with the graph
    are there.
    """
    import torch

    from sheafdeq.data.community import community_graph
    from sheafdeq.data.graph import Graph

    torch.set_num_threads(1)
    part, _ = community_graph(42, level=7)
    copies = max(1, round(edges / part.num_edges))
    graph = Graph.union([part] * copies)
    work = Work(graph)
    steps = 2 if edges < 10**7 else STEPS
    step = work.step("native")

    def training_pass(count: int) -> None:
        state = work.state
        for _ in range(count):
            state = step(state, work.drive)
        work.model.zero_grad(set_to_none=True)
        state.sum().backward()

    training_pass(min(steps, 2))
    repeats = max(1, min(20, 2 * 10**6 // edges))
    seconds = min(_clock(partial(training_pass, steps)) for _ in range(repeats))
    return {
        "edges": graph.num_edges,
        "nodes": graph.num_nodes,
        "steps": steps,
        "seconds": seconds,
        "nanoseconds_per_edge": seconds / steps / graph.num_edges * 1e9,
        "peak_memory_bytes": _high_water(),
    }


# ---------------------------------------------------------------------- memory


def _memory_in_child(name: str, quick: bool) -> int:
    """Peak memory of one training pass beyond what was held before it, in a process of its own."""
    return int(_in_child(name, quick)["bytes"])


def _in_child(name: str, quick: bool) -> dict[str, Any]:
    command = [
        sys.executable,
        "-m",
        "sheafdeq",
        "bench",
        "--measure",
        name,
        *(["--quick"] if quick else []),
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def _memory_of(name: str, quick: bool) -> dict[str, int]:
    import torch

    torch.set_num_threads(1)
    work = Work(community_batch(quick))
    step = work.step(name)
    with torch.no_grad():
        step(work.state, work.drive)  # load code and build the layout before the measurement starts
    _reset_high_water()
    held = _resident()
    work.training_pass(name)
    return {"bytes": max(_high_water() - held, 0)}


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise KeyError(key)


def _resident() -> int:
    try:
        return _status("VmRSS")
    except (OSError, KeyError):
        return _high_water()


def _high_water() -> int:
    try:
        return _status("VmHWM")
    except (OSError, KeyError):
        import resource

        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        return peak if platform.system() == "Darwin" else peak * 1024


def _reset_high_water() -> None:
    # where it cannot be reset, the peak includes start-up, which is the same for every row
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def _machine() -> dict[str, Any]:
    import torch

    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.split(":", 1)[1].strip()
                break
    except OSError:
        pass
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": model,
        "cores": os.cpu_count(),
        "load_average": load,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


# ---------------------------------------------------------------------- output


def _table(result: dict[str, Any]) -> str:
    """The readable form."""
    machine = result["machine"]
    lines = [
        f"{result['steps']} steps forward and backward, {result['nodes']:,} nodes, "
        f"{result['edges']:,} stored edges, float32",
        f"{machine['processor']}, {machine['cores']} cores, load {machine['load_average']:.2f}, "
        f"torch {machine['torch']}, one thread "
        "unless said",
        "",
        f"{'':24}{'seconds':>10}{'over PyG':>10}{'memory':>12}",
    ]
    for row in result["rows"]:
        memory = f"{row['memory_bytes'] / 2**20:.0f} MiB" if row["memory_bytes"] is not None else ""
        lines.append(
            f"{row['name']:24}{row['seconds']:10.3f}{row['speedup_over_pyg']:9.1f}x{memory:>12}"
        )
    lines += ["", "a training pass of each model"]
    lines += [f"{row['name']:24}{row['seconds']:10.3f}" for row in result["models"]]
    if result["scales"]:
        lines += ["", f"{'edges':>12}{'ns per edge and step':>24}{'peak memory':>16}"]
        for row in result["scales"]:
            lines.append(
                f"{row['edges']:12,}{row['nanoseconds_per_edge']:24.0f}"
                f"{row['peak_memory_bytes'] / 2**30:12.2f} GiB"
            )
    lines.append("")
    for key, label, unit in (
        ("speedup_over_pyg", "faster than PyG message passing", "x"),
        ("times_arithmetic_limit", "times the arithmetic limit", ""),
        ("times_arithmetic_limit_without_recomputation", "  not counting recomputed work", ""),
        ("memory_ratio", "less memory than PyG", "x"),
        ("thread_scaling", "two threads against one", "x"),
        ("growth", "slowest over fastest time per edge", ""),
    ):
        if result[key] is not None:
            lines.append(f"{label:40}{result[key]:8.2f}{unit}")
    lines += result["notes"]
    return "\n".join(lines)


def _draw(result: dict[str, Any], folder: Path) -> None:
    """bench_time.png and bench_scale.png."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = sorted(result["rows"], key=lambda row: row["seconds"])
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    names = {
        "pyg": "PyG message passing",
        "compiled": "PyG, torch.compile",
        "reference": "split first layer",
        "native": "fused kernel",
    }
    labels = [names.get(row["name"], row["name"].replace("native", "fused kernel")) for row in rows]
    bars = left.barh(labels, [row["seconds"] for row in rows], color="#3b6ea5")
    left.bar_label(bars, [f"{row['seconds']:.2f} s" for row in rows], padding=3)
    left.set_xscale("log")
    left.set_xlim(
        0.3 * min(row["seconds"] for row in rows), 4 * max(row["seconds"] for row in rows)
    )
    left.set_xlabel("seconds, 20 steps forward and backward")
    measured = [
        (label, row) for label, row in zip(labels, rows, strict=True) if row["memory_bytes"]
    ]
    bars = right.barh(
        [label for label, _ in measured],
        [row["memory_bytes"] / 2**20 for _, row in measured],
        color="#a5653b",
    )
    right.bar_label(
        bars, [f"{row['memory_bytes'] / 2**20:,.0f} MiB" for _, row in measured], padding=3
    )
    right.set_xscale("log")
    held = [row["memory_bytes"] / 2**20 for _, row in measured]
    right.set_xlim(0.3 * min(held), 6 * max(held))
    right.set_xlabel("peak memory of the pass, MiB")
    _save(figure, folder / "bench_time.png")
    pyplot.close(figure)
    if result["scales"]:
        figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
        axes.plot(
            [r["edges"] for r in result["scales"]],
            [r["nanoseconds_per_edge"] for r in result["scales"]],
            "o-",
            color="#3b6ea5",
        )
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("stored edges")
        axes.set_ylabel("ns per edge and step")
        _save(figure, folder / "bench_scale.png")
        pyplot.close(figure)


def _save(figure: Any, path: Path) -> None:
    """Whole or not at all."""
    import io

    from sheafdeq.records import write_bytes

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    write_bytes(path, drawn.getvalue())
