"""The native step in an order of its own: the caller sees the same values and gradients, in the
places of the caller's nodes and edges."""

from __future__ import annotations

import numpy
import pytest
import torch
from torch import Tensor

from sheafdeq.edges import Edges
from sheafdeq.ops import node_order as orders
from sheafdeq.ops.native_calls import make_layout, native_layout
from sheafdeq.ops.native_module import native_available
from sheafdeq.ops.node_order import node_order, step_layout
from sheafdeq.ops.sheaf_propagate import Layers
from sheafdeq.ops.sheaf_step import StepOptions, StepWeights, sheaf_step, sheaf_step_reference

pytestmark = pytest.mark.skipif(not native_available(), reason="the kernel is not built")


def shuffled_grid(side: int, seed: int = 0) -> Tensor:
    """(2, e) both directions of the edges of a grid whose nodes are numbered at random, sorted by
    target."""
    cells = numpy.random.default_rng(seed).permutation(side * side).reshape(side, side)
    right = numpy.stack([cells[:, :-1].ravel(), cells[:, 1:].ravel()])
    down = numpy.stack([cells[:-1].ravel(), cells[1:].ravel()])
    index = numpy.concatenate([right, right[::-1], down, down[::-1]], axis=1)
    return torch.from_numpy(index[:, numpy.lexsort((index[0], index[1]))].copy())


def random_edges(nodes: int, count: int) -> Tensor:
    index = torch.randint(nodes, (2, count), generator=torch.Generator().manual_seed(0))
    return index[:, torch.argsort(index[1], stable=True)]


def arguments(edges: Edges, dtype: torch.dtype, d: int, q: int, h: int) -> tuple:
    generator = torch.Generator().manual_seed(1)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype)

    n, c = edges.num_targets, d * q
    weights = StepWeights(
        Layers(draw(h, 2 * c), draw(h), draw(h, 2 * c), draw(h)),
        Layers(draw(d * d, h), draw(d * d), draw(d * d, h), draw(d * d)),
        draw(d, d),
        draw(q, q),
    )
    leaves = [draw(n, c), draw(n, c), *weights.flat, draw(edges.num_edges, 2 * h)]
    return [leaf.requires_grad_() for leaf in leaves], StepOptions(1.2, 2.0, True, edges, d, q)


def values_and_gradients(function, leaves, options):
    state, drive, *flat, edge_hidden = leaves
    out = function(state, drive, StepWeights.of(flat), edge_hidden, options)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).view_as(out)
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), leaves)]


@pytest.mark.parametrize("q", [4, 5])
def test_values_and_gradients_come_back_to_the_callers_places(
    q: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orders, "NEAR", 30)
    monkeypatch.setattr(orders, "SMALL", 100)
    edges = Edges.of(shuffled_grid(20), 400, torch.float64)
    assert node_order(edges).name == "reverse Cuthill-McKee"
    assert step_layout(edges) is not native_layout(edges)
    leaves, options = arguments(edges, torch.float64, 2, q, 6)
    ours = values_and_gradients(sheaf_step, leaves, options)
    theirs = values_and_gradients(sheaf_step_reference, leaves, options)
    for a, b in zip(ours, theirs, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-11


def test_an_order_is_sought_where_it_helps_and_named_where_none_does() -> None:
    side = 80
    grid = Edges.of(shuffled_grid(side), side * side, torch.float32)
    order = node_order(grid)
    assert order.nodes is not None
    assert order.far < 0.01 < 0.5 < order.far_given
    assert sorted(order.nodes.tolist()) == list(range(side * side))
    chance = node_order(Edges.of(random_edges(6000, 60_000), 6000, torch.float32))
    assert (chance.nodes, chance.name) == (None, "given: no order helps")
    small = node_order(Edges.of(shuffled_grid(20), 400, torch.float32))
    assert (small.nodes, small.name) == (None, "given")


def test_an_order_that_is_none_is_refused() -> None:
    def layout():
        pointer = torch.tensor([0, 1, 2])
        ones = torch.ones(2, dtype=torch.float64)
        return make_layout(torch.tensor([1, 0]), pointer, ones, ones, 2)

    for nodes, edges in (([0, 0], [0, 1]), ([0, 1], [1, 1]), ([0], [0, 1]), ([0, 2], [0, 1])):
        with pytest.raises(ValueError, match=r"position|row"):
            layout().reorder(torch.tensor(nodes), torch.tensor(edges))


def test_graphs_side_by_side_are_taken_one_after_the_other() -> None:
    part = shuffled_grid(30)
    index = torch.cat([part + 900 * copy for copy in range(6)], dim=1)
    edges = Edges.of(index, 5400, torch.float64)
    layout = native_layout(edges)
    assert step_layout(edges) is layout
    assert layout.pieces(1) == 6
    assert layout.pieces(2) == 6
    assert native_layout(Edges.of(random_edges(6000, 60_000), 6000, torch.float32)).pieces(2) == 0
    leaves, options = arguments(edges, torch.float64, 3, 4, 5)
    one = values_and_gradients(sheaf_step, leaves, options)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        two = values_and_gradients(sheaf_step, leaves, options)
        again = values_and_gradients(sheaf_step, leaves, options)
    finally:
        torch.set_num_threads(before)
    reference = values_and_gradients(sheaf_step_reference, leaves, options)
    for a, b, c, d in zip(one, two, again, reference, strict=True):
        assert torch.equal(b, c)
        assert float((a - d).norm() / d.norm()) < 1e-11
        assert float((b - d).norm() / d.norm()) < 1e-11


@pytest.mark.parametrize("directed", [False, True])
def test_a_large_piece_with_short_edges_is_taken_in_chunks(directed: bool) -> None:
    n = 2500
    nodes = torch.arange(n)
    ahead = [torch.stack([nodes[:-k], nodes[k:]]) for k in (1, 3, 40)]
    both = ahead if directed else [*ahead, *(pair.flip(0) for pair in ahead)]
    index = torch.cat(both, dim=1)
    edges = Edges.of(index[:, torch.argsort(index[1], stable=True)], n, torch.float64)
    assert native_layout(edges).pieces(1) == 1
    assert native_layout(edges).chunks(1) == 5
    leaves, options = arguments(edges, torch.float64, 2, 3, 4)
    for a, b in zip(
        values_and_gradients(sheaf_step, leaves, options),
        values_and_gradients(sheaf_step_reference, leaves, options),
        strict=True,
    ):
        assert float((a - b).norm() / b.norm()) < 1e-11
    far = Edges.of(random_edges(n, 20_000), n, torch.float64)
    assert native_layout(far).chunks(1) == 1
