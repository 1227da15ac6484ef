"""How many gradients of a training pass are below the smallest normal number, as a record.

    python benchmarks/profile_gradients.py --out results/profiles/gradients.json

Counts, step by step, the entries of the gradient that reaches a state of StrongSheafDEQ on the six
community graphs, with PyTorch's operations and with the kernel, which counts them as zero.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

import torch

from sheafdeq.machine import processor_name
from sheafdeq.ops import use_kernel
from sheafdeq.ops.native_module import native_description
from sheafdeq.records import write_bytes
from sheafdeq.registry import COMMUNITY, build_model
from sheafdeq.speed.work import community_batch


def counted(name: str, route: str) -> list[dict[str, Any]]:
    """Entries and those between zero and the smallest normal number, last step first."""
    graph = community_batch()
    torch.manual_seed(0)
    model = build_model(name, COMMUNITY)
    rows: list[dict[str, Any]] = []
    tiny = torch.finfo(torch.float32).tiny

    def look(grad: torch.Tensor) -> None:
        size = grad.abs()
        below = int(((size > 0) & (size < tiny)).sum())
        rows.append({"entries": grad.numel(), "below": below, "zero": int((size == 0).sum())})

    with use_kernel(route):
        context = model.prepare(graph)
        state = model.initial_state(context).requires_grad_()
        for _ in range(20):
            state.register_hook(look)
            state = model.step(state, context)
        model.readout(state, context).sum().backward()
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    torch.set_num_threads(1)
    result = {
        "command": "python benchmarks/profile_gradients.py",
        "machine": processor_name(),
        "kernel": native_description(),
        "strong-sheaf": {
            route: counted("strong-sheaf", route) for route in ("reference", "native")
        },
    }
    for route, rows in result["strong-sheaf"].items():  # type: ignore[attr-defined]
        below, entries = (sum(row[key] for row in rows) for key in ("below", "entries"))
        print(f"{route}: {below} of {entries} entries below the smallest normal number")
    write_bytes(options.out, (json.dumps(result, indent=2) + "\n").encode())


if __name__ == "__main__":
    main()
