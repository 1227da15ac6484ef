"""Everything ``sheafdeq bench`` reports, as plain data."""

from __future__ import annotations

import os
import platform
import time
from functools import partial
from typing import Any

import torch

from sheafdeq.machine import processor_name
from sheafdeq.ops.native_calls import native
from sheafdeq.ops.native_module import native_available, native_description
from sheafdeq.registry import COMMUNITY, build_model
from sheafdeq.registry import MODELS as REGISTERED
from sheafdeq.speed.attention_times import attention_keys
from sheafdeq.speed.memory import in_child, memory_in_child
from sheafdeq.speed.scales import ORDERS, SCALES, clock, edge_time_ratio
from sheafdeq.speed.small_graphs import small_graph_keys
from sheafdeq.speed.work import STEPS, Work, community_batch, operation_count

__all__ = [
    "MODELS",
    "OPTIONS",
    "measure",
]


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

# what is measured beside the step
OTHER_KEYS = ("attention_speedup", "coordinates_speedup", "sums_speedup", "terrain_speedup")

# equal depth and maps
OPTIONS: dict[str, dict[str, Any]] = {
    "nsd": {"maps": "full", "layers": STEPS},
    "dnsd": {"maps": "full"},
}


def measure(*, quick: bool = False, scale: bool = False) -> dict[str, Any]:
    """Everything the command reports, as plain data."""
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
                    seconds.get(name, float("inf")), clock(partial(work.training_pass, name))
                )
        threads = min(2, os.cpu_count() or 1)
        scaling = None
        if "native" in seconds and threads > 1:
            pair = {1: float("inf"), threads: float("inf")}
            for _ in range(rounds):
                for count in pair:
                    torch.set_num_threads(count)
                    work.training_pass("native", warm=True)
                    pair[count] = min(pair[count], clock(partial(work.training_pass, "native")))
            torch.set_num_threads(1)
            seconds["native"] = min(seconds["native"], pair[1])
            seconds[f"native, {threads} threads"] = pair[threads]
            scaling = pair[1] / pair[threads]
        models = _model_rows(graph, 1 if quick else 2)
        others: dict[str, Any] = {}
        if "native" in seconds:
            others = {**attention_keys(graph, quick=quick), **small_graph_keys(quick=quick)}
        growth, orders = [], []
        if "native" in seconds:
            sizes = SCALES[:2] if quick else SCALES
            kind = "scale-whole" if scale else "scale"
            growth = [in_child(f"{kind}:{size}", quick) for size in sizes]
            orders = [] if quick else [in_child(f"order:{graph}", quick) for graph in ORDERS]
    finally:
        torch.set_num_threads(before)
    memory: dict[str, int] = {
        name: memory_in_child(name, quick)
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
        "edge_time_ratio": edge_time_ratio(growth),
        "growth": max(r["nanoseconds_per_edge"] for r in growth)
        / min(r["nanoseconds_per_edge"] for r in growth)
        if growth
        else None,
        **{key: others.get(key) for key in OTHER_KEYS},
        "rows": rows,
        "models": models,
        "attention": others.get("attention", []),
        "small_graphs": others.get("small_graphs", []),
        "scales": growth,
        "orders": orders,
        "operations": operations,
        "peak_operations_per_second": rate,
        "nodes": graph.num_nodes,
        "edges": graph.num_edges,
        "steps": STEPS,
        "quick": quick,
        "machine": _machine(),
        "kernel": native_description(),
        "notes": notes,
    }


def _peak_rate() -> float:
    """Operations a second that the machine can really do, one thread: the faster of a large matrix
    product and, where the kernel is built, multiply-adds in registers. On some processors PyTorch's
    product uses shorter vectors than there are, and would be no limit."""
    size = 1536
    a, b = torch.rand(size, size), torch.rand(size, size)
    a @ b
    product = 2.0 * size**3 / min(clock(lambda: a @ b) for _ in range(4))
    if not native_available():
        return product
    return max(product, *(_register_rate() for _ in range(4)))


def _register_rate(rounds: int = 2_000_000) -> float:
    start = time.perf_counter()
    operations, _ = native(torch.float32).arithmetic(rounds)
    return float(operations / (time.perf_counter() - start))


def _model_rows(graph: Any, repeats: int) -> list[dict[str, Any]]:
    """A training pass of every model at the community sizes (c = 48, K = 20), fused SheafDEQ
    first."""
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
        rows.append({"name": name, "seconds": min(clock(training_pass) for _ in range(repeats))})
    return rows


def _machine() -> dict[str, Any]:
    return {
        "processor": processor_name(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
        "python": platform.python_version(),
        "torch": torch.__version__,
    }
