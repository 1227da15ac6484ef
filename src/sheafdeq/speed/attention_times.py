"""Attention beside its PyTorch path and PyG's layer, and whole training passes of the models that
attend."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch_geometric.nn import TransformerConv

from sheafdeq.data.graph import Graph
from sheafdeq.models.loop_transformer import LoopTransformer
from sheafdeq.ops.attention import packed_attention
from sheafdeq.ops.linear import linear
from sheafdeq.ops.native_module import use_kernel
from sheafdeq.registry import COMMUNITY, build_model
from sheafdeq.solvers import Picard
from sheafdeq.speed.scales import clock

__all__ = ["ATTENDING_MODELS", "Compared", "attention_keys", "attention_times"]

ATTENDING_MODELS = ("graph-attn-deq", "loop-transformer", "strong-attention", "gat")
HEADS, WIDTH = 3, 16
IN_A_ROW = 0.05
"""Seconds that one work is called again and again before the other has its turn."""


@dataclass(frozen=True)
class Compared:
    """Forward and backward of one thing by two routes."""

    name: str
    seconds: float  # with the native kernel
    peer: str
    peer_seconds: float

    @property
    def speedup(self) -> float:
        """How many times the peer takes."""
        return self.peer_seconds / self.seconds

    def row(self) -> dict[str, Any]:
        """As plain data."""
        return {**asdict(self), "speedup": self.speedup}


def attention_times(
    graph: Graph, *, rounds: int = 5, models: tuple[str, ...] = ATTENDING_MODELS
) -> list[Compared]:
    """All comparisons on one thread, each the least of ``rounds``, taking turns.

    * ``attention``: from queries, keys and values to averages, 3 heads of width 16.
    * ``layer``: the gated layer of the Loop Transformer against PyG's ``TransformerConv`` with the
      same weights.
    * ``dense``: the product that makes queries, keys and values (48 to 144 columns).
    * the models: a training pass of 20 steps, the residual of the last one measured, as
      ``sheafdeq train`` does it.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        generator = torch.Generator().manual_seed(0)
        packed = torch.randn(graph.num_nodes, 3 * HEADS * WIDTH, generator=generator)
        cotangent = torch.randn(graph.num_nodes, HEADS * WIDTH, generator=generator)
        packed.requires_grad_()

        def attend() -> None:
            out = packed_attention(packed, graph.edges, HEADS, own=True)
            torch.autograd.grad(out, packed, cotangent)

        state = cotangent.clone().requires_grad_()
        weight = torch.randn(packed.shape[1], state.shape[1], generator=generator).requires_grad_()

        def project() -> None:
            torch.autograd.grad(linear(state, weight), (state, weight), packed.detach())

        rows = [
            _compared("attention", attend, rounds),
            _layer(graph, cotangent, rounds),
            _compared("dense", project, rounds),
        ]
        for name in models:
            rows.append(_compared(name, partial(_training_pass, _model(name), graph), rounds))
        return rows
    finally:
        torch.set_num_threads(before)


def attention_keys(graph: Graph, *, quick: bool = False) -> dict[str, Any]:
    """``attention_speedup`` and the rows behind it."""
    rows = attention_times(graph, rounds=2 if quick else 5)
    return {"attention_speedup": rows[0].speedup, "attention": [row.row() for row in rows]}


def same_layers() -> tuple[LoopTransformer, TransformerConv]:
    """A Loop Transformer, and PyG's layer with the weights of its attention."""
    torch.manual_seed(0)
    model = LoopTransformer(2, 3, HEADS, WIDTH)
    layer = TransformerConv(HEADS * WIDTH, WIDTH, HEADS, beta=True)
    pairs = zip(
        (layer.lin_query, layer.lin_key, layer.lin_value, layer.lin_skip, layer.lin_beta),
        (model.query, model.key, model.value, model.skip, model.gate),
        strict=True,
    )
    for theirs, ours in pairs:
        theirs.load_state_dict(ours.state_dict())
    return model, layer


def _layer(graph: Graph, cotangent: Tensor, rounds: int) -> Compared:
    model, layer = same_layers()
    state = torch.randn(cotangent.shape, generator=torch.Generator().manual_seed(1))
    state.requires_grad_()

    def ours() -> None:  # the projections of a context belong to one backward pass
        model.convolve(state, state, graph.edges, model.prepare(graph)).backward(cotangent)

    def theirs() -> None:
        layer(state, graph.edge_index).backward(cotangent)

    mine, peer = _alternating((ours, theirs), rounds)
    return Compared("layer", mine, "TransformerConv", peer)


def _model(name: str) -> Any:
    torch.manual_seed(0)
    return build_model(name, COMMUNITY)


def _training_pass(model: Any, graph: Graph) -> None:
    model.zero_grad(set_to_none=True)
    options = (
        {"solver": Picard(model.steps, trace=False, probe=False)} if hasattr(model, "steps") else {}
    )
    model.run(graph, **options).logits.sum().backward()


def _compared(name: str, work: Callable[[], None], rounds: int) -> Compared:
    def by(kernel: str) -> None:
        with use_kernel(kernel):
            work()

    mine, peer = _alternating((partial(by, "native"), partial(by, "reference")), rounds)
    return Compared(name, mine, "PyTorch", peer)


def _alternating(works: tuple[Callable[[], None], ...], rounds: int) -> list[float]:
    """Least seconds a call over ``rounds``; in each, every work is called in a row for a while, as
    training calls it, so that none pays for the caches another one filled."""
    best = [float("inf")] * len(works)
    calls = []
    for work in works:
        work()  # layouts are made and code is loaded
        calls.append(max(1, round(IN_A_ROW / clock(work))))
    for _ in range(rounds):
        for place, work in enumerate(works):
            best[place] = min(
                best[place], clock(partial(_repeat, work, calls[place])) / calls[place]
            )
    return best


def _repeat(work: Callable[[], None], calls: int) -> None:
    for _ in range(calls):
        work()
