"""Doors of the native extension: tensors and layouts."""

from __future__ import annotations

import contextlib
from pathlib import Path
from random import Random
from typing import Any

__all__ = ["layouts", "native"]


def _tensor(random: Random, good: Any) -> Any:
    """A tensor in a guise: other type, layout, shape, view or values."""
    import torch
    from torch_geometric import EdgeIndex

    guise = random.randrange(16)
    if guise == 0:
        return good.to(
            random.choice(
                [
                    torch.int8,
                    torch.int32,
                    torch.float16,
                    torch.bfloat16,
                    torch.float64,
                    torch.bool,
                    torch.complex64,
                ]
            )
        )
    if guise == 1:
        return good.flatten()
    if guise == 2:
        return good[..., :0]
    if guise == 3:
        return good.T
    if guise == 4 and good.is_floating_point():
        return good * random.choice([0, 1e20, -1e20, 1e38, float("nan"), float("inf"), 1e-40])
    if guise == 5 and not good.is_floating_point():
        return good + random.choice([-1, 1, 10**6, 2**62])
    if guise == 6:
        return torch.stack([good, good], dim=-1)[..., 0]
    if guise == 7:
        return good.as_subclass(type("Odd", (torch.Tensor,), {}))
    if guise == 8 and good.is_floating_point():
        return (
            torch.complex(torch.zeros_like(good), good).conj().imag
            if good.dtype == torch.float32
            else -good
        )
    if guise == 9:
        return good.to_sparse() if good.dim() == 2 else good[None]
    if guise == 10:
        return good.to("meta")
    if guise == 11:
        return random.choice([None, 3, "abc", good.tolist(), good.numpy()])
    if guise == 12 and not good.is_floating_point() and good.dim() == 2:
        return EdgeIndex(good, sparse_size=(8, 8))
    return good


def native(random: Random, folder: Path) -> None:
    """Models that run the kernels, with tensors in every guise, forward and backward."""
    import torch
    import torch_geometric  # noqa: F401  # in the unwatched first cases: importing it executes code

    from sheafdeq.errors import SheafDEQError
    from sheafdeq.registry import Shape, build_model

    generator = torch.Generator().manual_seed(random.randrange(2**31))
    n, e = random.choice([0, 1, 6, 40]), random.choice([0, 1, 30])
    e = e if n else 0
    edge_dim = random.choice([None, 2])
    name = random.choice(
        [
            "sheafdeq",
            "strong-sheaf",
            "sheaf-cascade",
            "graph-attn-deq",
            "strong-attention",
            "sheaf-relay",
        ]
    )
    shape = Shape(3, 2, edge_dim, random.choice([1, 2, 3, 5]), random.choice([1, 4, 16]), 3)
    model = build_model(
        name, shape, **({"levels": 2, "level_steps": 2} if name == "sheaf-cascade" else {})
    )
    x = torch.randn(n, 3, generator=generator)
    edge_index = torch.randint(0, max(n, 1), (2, e), generator=generator)
    edge_attr = torch.rand(e, 2, generator=generator) if edge_dim else None
    batch = torch.arange(n) * 2 // max(n, 1) if random.random() < 0.3 else None
    parts = [x, edge_index, edge_attr, batch]
    for _ in range(random.randrange(3)):
        place = random.randrange(4)
        if parts[place] is not None:
            part = parts[place]
            simple = (
                type(part) is torch.Tensor and part.layout is torch.strided and not part.is_meta
            )
            parts[place] = _tensor(random, part) if simple else part
    output = model(*parts)
    if output.shape != (n, 2):
        raise AssertionError(f"{name}: output of shape {tuple(output.shape)} for {n} nodes")
    if n and bool(torch.isfinite(output).all()):
        with contextlib.suppress(SheafDEQError):
            output.sum().backward()


def layouts(random: Random, folder: Path) -> None:
    """Indices and tables handed to the kernels directly."""
    import torch

    from sheafdeq.edges import Edges
    from sheafdeq.ops import Layers, Tables, sheaf_propagate

    generator = torch.Generator().manual_seed(random.randrange(2**31))
    n, e, d, q, h = (
        random.choice([1, 5, 20]),
        random.choice([0, 3, 40]),
        random.choice([1, 2, 3]),
        random.choice([1, 4]),
        4,
    )
    target = torch.sort(torch.randint(0, n, (e,), generator=generator)).values
    pointer = torch.cat(
        [torch.zeros(1, dtype=torch.int64), torch.bincount(target, minlength=n).cumsum(0)]
    )
    parts = [
        torch.randint(0, n, (e,), generator=generator),
        pointer,
        torch.rand(e, generator=generator),
        torch.ones(n),
    ]
    for _ in range(random.randrange(2)):
        place = random.randrange(4)
        part = parts[place]
        parts[place] = random.choice(
            [part[:-1], part + 1, part * -1, part.double(), part * 10**12, part.flip(0), part[None]]
        )
    sources = random.choice([n] * 9 + [0, n + 3, -1, 2**40])
    edges = Edges.build(parts[0], parts[1], parts[2], parts[3], sources)
    rows = max(0, min(sources, 100))

    def draw(*shape: int) -> Any:
        tensor = torch.randn(*shape, generator=generator)
        return (
            tensor
            if random.random() < 0.95
            else random.choice([tensor[..., :-1], tensor.double(), tensor.T, tensor[:0]])
        )

    second = Layers(
        source_weight=draw(d * d, h),
        source_bias=draw(d * d),
        target_weight=draw(d * d, h),
        target_bias=draw(d * d),
    )
    tables = Tables(
        draw(rows, 2 * h),
        draw(n, 2 * h),
        random.choice([None, draw(e, 2 * h)]),
        draw(rows, d * q),
        draw(n, d * q),
    )
    sheaf_propagate(tables, second, edges, d, q)
