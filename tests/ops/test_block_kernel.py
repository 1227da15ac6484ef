"""Blocks generated and multiplied by the native kernel against PyTorch, finite differences, and
their own promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ops.test_sheaf_step import (
    SETS,
    TOLERANCE,
    disagreement,
    instruction_set_of,
    needs_native,
    random_graph,
)
from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.layers.gates import GATES, Gate
from sheafdeq.ops import use_kernel
from sheafdeq.ops.block_kernel import native_blocks, native_gated_step, native_split_blocks
from sheafdeq.ops.gated_step import block_product, edge_product, gated_map
from sheafdeq.ops.sheaf_blocks import generate, generate_parts

pytestmark = needs_native


def draw(
    seed: int, dtype: torch.dtype, *shapes: tuple[int, ...], scale: float = 0.5
) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        (scale * torch.randn(*shape, generator=generator, dtype=torch.float64))
        .to(dtype)
        .requires_grad_()
        for shape in shapes
    ]


def generation(
    graph: Graph, d: int, h: int, seed: int, dtype: torch.dtype, bounded: bool
) -> list[Tensor]:
    n, e = graph.num_nodes, graph.num_edges
    tensors = draw(seed, dtype, (n, h), (n, h), (e, h), (2 * d * d, h), (2 * d * d,), (e, 2, d, d))
    return [*tensors[:5], tensors[5].detach().abs().requires_grad_()] if bounded else tensors[:5]


def generated(tensors: list[Tensor], edges: Edges, sign: int = -1) -> Tensor:
    if len(tensors) > 5:
        parts = [tensor for part in generate_parts(*tensors, edges, sign=sign) for tensor in part]  # type: ignore[arg-type]
    else:
        parts = list(generate(*tensors, edges, sign=1, softening=1e-3))
    return torch.cat([tensor.reshape(-1) for tensor in parts])


def stepping(
    graph: Graph, d: int, q: int, seed: int, dtype: torch.dtype, sizes: bool
) -> list[Tensor]:
    n, e = graph.num_nodes, graph.num_edges
    state, base, mixing, blocks, diagonal, stalk = draw(
        seed, dtype, (n, d * q), (n, d * q), (q, q), (e, d, d), (n, d, d), (d, d)
    )
    tensors = [state.detach().exp().requires_grad_(), base, mixing, blocks, diagonal]
    if sizes:
        tensors[3:] = [x.detach().abs().requires_grad_() for x in tensors[3:]]
        tensors += [
            stalk,
            *(
                x.detach().abs().requires_grad_()
                for x in draw(seed + 1, dtype, (e, d, d), (n, d, d))
            ),
        ]
    return tensors


def stepped(tensors: list[Tensor], edges: Edges, gate: Gate) -> Tensor:
    state, base, mixing, blocks, diagonal, *rest = tensors
    options: dict[str, Any] = {"stalk_mixing": rest[0], "minus": (rest[1], rest[2])} if rest else {}
    return gated_map(blocks, diagonal, mixing, base, gate, edges, **options)(state)


def results(function: Any, tensors: list[Tensor], *options: Any) -> list[Tensor]:
    """Value and all gradients against a fixed cotangent."""
    out = function(tensors, *options)
    cotangent = torch.cos(torch.arange(out.numel(), dtype=torch.float64)).view_as(out).to(out.dtype)
    return [out.detach(), *torch.autograd.grad((out * cotangent).sum(), tensors)]


def both(function: Any, tensors: list[Tensor], *options: Any) -> tuple[list[Tensor], list[Tensor]]:
    ours = results(function, tensors, *options)
    with use_kernel("reference"):
        return ours, results(function, tensors, *options)


graphs = st.builds(
    lambda n, e, seed, hub: (n, e, seed, hub),
    st.integers(1, 14),
    st.integers(0, 60),
    st.integers(0, 10**6),
    st.booleans(),
)


def build(recipe: tuple[int, int, int, bool], dtype: torch.dtype) -> Graph:
    """Random edges, self-loops and parallel edges among them; with a hub, every edge ends in node 0
    and others are isolated."""
    n, e, seed, hub = recipe
    graph = random_graph(n, e, seed, dtype=dtype)
    if not hub:
        return graph
    edges = graph.edge_index.clone()
    edges[1] = 0
    return Graph.build(graph.x, edges)


@settings(max_examples=25, deadline=None)
@given(
    recipe=graphs,
    d=st.sampled_from([1, 2, 3, 4, 5]),
    h=st.integers(1, 18),
    bounded=st.booleans(),
    double=st.booleans(),
)
def test_generated_blocks_agree(recipe: Any, d: int, h: int, bounded: bool, double: bool) -> None:
    dtype = torch.float64 if double else torch.float32
    graph = build(recipe, dtype)
    tensors = generation(graph, d, h, recipe[2], dtype, bounded)
    if not double:  # a unit within rounding of the kink may fall on either side: keep away from it
        edges = graph.edges
        hidden = tensors[0][edges.source] + tensors[1][edges.target] + tensors[2]
        near = hidden.abs() < 1e-4
        tensors[2] = (tensors[2] + near * 1e-2).detach().requires_grad_()
    ours, theirs = both(generated, tensors, graph.edges)
    assert disagreement(ours, theirs) < TOLERANCE[dtype]


@settings(max_examples=25, deadline=None)
@given(
    recipe=graphs,
    d=st.sampled_from([1, 2, 3, 4, 6]),
    q=st.sampled_from([1, 3, 4, 8, 16, 17]),
    gate=st.sampled_from(sorted(GATES)),
    sizes=st.booleans(),
    double=st.booleans(),
)
def test_gated_steps_agree(
    recipe: Any, d: int, q: int, gate: str, sizes: bool, double: bool
) -> None:
    dtype = torch.float64 if double else torch.float32
    graph = build(recipe, dtype)
    tensors = stepping(graph, d, q, recipe[2], dtype, sizes)
    ours, theirs = both(stepped, tensors, graph.edges, GATES[gate])
    assert disagreement(ours, theirs, d) < TOLERANCE[dtype]


@pytest.mark.parametrize(("d", "q"), [(1, 5), (3, 16), (7, 3)])
def test_plain_product_is_the_edge_form(d: int, q: int) -> None:
    graph = random_graph(11, 50, 3)
    edges = graph.edges
    blocks, diagonal, values = draw(3, torch.float64, (50, d, d), (11, d, d), (11, d, q))

    def function(tensors: list[Tensor]) -> Tensor:
        return block_product(*tensors, edges)  # type: ignore[arg-type]

    def plain(tensors: list[Tensor]) -> Tensor:
        blocks, diagonal, values = tensors
        return edge_product(blocks, values[graph.source], edges) + diagonal @ values

    assert (
        disagreement(
            results(function, [blocks, diagonal, values]),
            results(plain, [blocks, diagonal, values]),
        )
        < 1e-11
    )


@pytest.mark.parametrize("bounded", [False, True])
def test_generation_passes_gradcheck(bounded: bool) -> None:
    graph = random_graph(5, 11, 1)
    tensors = generation(graph, 2, 3, 1, torch.float64, bounded)
    assert torch.autograd.gradcheck(
        lambda *inputs: generated(list(inputs), graph.edges), tensors, atol=1e-6
    )


@pytest.mark.parametrize("gate", sorted(GATES))
@pytest.mark.parametrize("sizes", [False, True])
def test_gated_step_passes_gradcheck(gate: str, sizes: bool) -> None:
    graph = random_graph(5, 11, 2)
    tensors = stepping(graph, 2, 3, 2, torch.float64, sizes)
    assert torch.autograd.gradcheck(
        lambda *inputs: stepped(list(inputs), graph.edges, GATES[gate]), tensors, atol=1e-6
    )


@pytest.mark.parametrize("threads", [1, 2, 3])
def test_repeated_runs_are_bitwise_equal(threads: int) -> None:
    graph = random_graph(900, 20000, 6, dtype=torch.float32)
    edges = graph.edges
    maps = generation(graph, 3, 24, 6, torch.float32, True)
    tensors = stepping(graph, 3, 16, 6, torch.float32, False)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        first, second = (
            results(generated, maps, edges) + results(stepped, tensors, edges, GATES["balance"])
            for _ in range(2)
        )
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    with use_kernel("reference"):
        theirs = (
            results(generated, maps, edges)[:1]
            + results(stepped, tensors, edges, GATES["balance"])[:1]
        )
    assert disagreement([first[0], first[7]], theirs) < 1e-5


def test_every_instruction_set_agrees() -> None:
    graph = random_graph(9, 40, 4)
    maps, tensors = (
        generation(graph, 3, 9, 4, torch.float64, False),
        stepping(graph, 3, 5, 4, torch.float64, True),
    )
    for name in SETS:
        with instruction_set_of(name):
            for function, inputs, options in (
                (generated, maps, ()),
                (stepped, tensors, (GATES["tanh"],)),
            ):
                ours, theirs = both(function, inputs, graph.edges, *options)
                assert disagreement(ours, theirs) < 1e-11


def test_nothing_of_edges_times_channels_is_saved() -> None:
    graph = random_graph(50, 4000, 7)
    d, q = 2, 16
    saved: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    tensors = stepping(graph, d, q, 7, torch.float64, False)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        stepped(tensors, graph.edges, GATES["rational"])
    assert max(saved) == 4000 * d * d


def test_other_weights_on_the_same_edges() -> None:
    graph = random_graph(8, 30, 5)
    tensors = generation(graph, 2, 4, 5, torch.float64, False)
    weight = torch.rand(30, dtype=torch.float64)
    ours, theirs = both(generated, tensors, graph.edges.reweighted(weight))
    assert disagreement(ours, theirs) < 1e-11
    assert not torch.equal(ours[0], generated(tensors, graph.edges).detach())


def test_a_gate_of_ones_own_is_applied_in_pytorch() -> None:
    graph = random_graph(6, 20, 6)
    tensors = stepping(graph, 2, 3, 6, torch.float64, False)
    own = Gate("own", lambda plus, minus: plus.sin() * minus, GATES["tanh"].coefficient)
    ours, theirs = both(stepped, tensors, graph.edges, own)
    assert disagreement(ours, theirs) < 1e-11


def test_wrong_shapes_and_types_are_refused() -> None:
    graph = random_graph(6, 20, 6)
    layout = graph.edges
    maps = [tensor.detach() for tensor in generation(graph, 2, 8, 6, torch.float64, True)]
    maps[5] = maps[5].view(20, 8)
    weight = torch.ones(20, dtype=torch.float64)
    for position in range(6):
        broken = [tensor[:-1] if i == position else tensor for i, tensor in enumerate(maps)]
        with pytest.raises(InputError):
            native_split_blocks(*broken, weight, layout, sign=1.0)
    with pytest.raises(InputError, match="float32"):
        native_blocks(*maps[:4], maps[4].float(), weight, layout, sign=1.0)
    values, base, blocks, diagonal = (
        torch.ones(*shape, dtype=torch.float64)
        for shape in ((6, 2, 16), (6, 16), (20, 2, 2), (6, 2, 2))
    )
    native_gated_step(values, base, blocks, diagonal, None, layout, "tanh")
    for position in range(4):
        broken = [
            tensor[:-1] if i == position else tensor
            for i, tensor in enumerate((values, base, blocks, diagonal))
        ]
        with pytest.raises(InputError):
            native_gated_step(*broken, None, layout, "tanh")
    with pytest.raises(InputError, match="entries"):
        native_gated_step(
            values[..., :-1].contiguous(), base, blocks, diagonal, None, layout, "tanh"
        )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_both_parts_of_a_graph_without_edges_are_written(dtype: torch.dtype) -> None:
    """The identity and zero, whatever the memory held before."""
    n, d, h = 8, 3, 4
    graph = Graph.build(torch.zeros(n, 1, dtype=dtype), torch.zeros(2, 0, dtype=torch.int64))
    tensors = generation(graph, d, h, 0, dtype, bounded=True)
    expected = torch.eye(d, dtype=dtype).expand(n, d, d)
    for value in range(1, 40):
        dirt = [torch.full((n, d, d), float(value), dtype=dtype) for _ in range(16)]
        del dirt
        with torch.no_grad():
            (_, plus), (_, minus) = generate_parts(*tensors, graph.edges, sign=-1)
        assert torch.equal(plus, expected)
        assert torch.equal(minus, torch.zeros(n, d, d, dtype=dtype))
