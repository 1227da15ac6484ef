"""The fused step against its pure PyTorch twin, finite differences, and its own promises."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import graphs
from sheafdeq import ops
from sheafdeq.data.graph import Graph
from sheafdeq.edges import Edges
from sheafdeq.errors import InputError
from sheafdeq.ops import (
    Layers,
    StepOptions,
    StepWeights,
    Tables,
    native_available,
    use_kernel,
)
from sheafdeq.ops.native_module import native_module

needs_native = pytest.mark.skipif(not native_available(), reason="the native kernel is not built")
TOLERANCE = {torch.float32: 1e-5, torch.float64: 1e-11}
SETS = native_module().instruction_sets() if native_available() else []


@contextmanager
def instruction_set_of(name: str) -> Iterator[None]:
    """Inside the ``with`` block native calls are those of one instruction set."""
    module = native_module()
    assert module is not None
    before = module.instruction_set()
    module.choose_instruction_set(name)
    try:
        yield
    finally:
        module.choose_instruction_set(before)


# The functions with all their tensors side by side, as gradients are asked for.
def sheaf_step(state: Any, drive: Any, *rest: Any, function: Any = ops.sheaf_step) -> Tensor:
    return function(state, drive, StepWeights.of(rest[:10]), rest[10], StepOptions(*rest[11:]))


def sheaf_step_reference(*arguments: Any) -> Tensor:
    return sheaf_step(*arguments, function=ops.sheaf_step_reference)


def sheaf_propagate(*arguments: Any, function: Any = ops.sheaf_propagate) -> Tensor:
    return function(Tables(*arguments[:5]), Layers(*arguments[5:9]), *arguments[9:])


def sheaf_propagate_reference(*arguments: Any) -> Tensor:
    return sheaf_propagate(*arguments, function=ops.sheaf_propagate_reference)


random_graph = partial(graphs.random_graph, isolated=False)


def step_arguments(
    graph: Graph,
    d: int,
    q: int,
    h: int,
    seed: int = 0,
    edge_features: bool = False,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int, scale: float = 0.4) -> Tensor:
        return (scale * torch.randn(*shape, generator=generator, dtype=dtype)).requires_grad_()

    n, c, extra = graph.num_nodes, d * q, 2 if edge_features else 0
    state = (torch.rand(n, c, generator=generator, dtype=dtype) + 0.3).requires_grad_()
    weights = [draw(h, 2 * c + extra), draw(h), draw(h, 2 * c + extra), draw(h)]
    second = [draw(d * d, h), draw(d * d), draw(d * d, h), draw(d * d)]
    edge_hidden = draw(graph.num_edges, 2 * h) if edge_features else None
    return [state, draw(n, c), *weights, *second, draw(d, d), draw(q, q), edge_hidden]


def table_arguments(
    layout: Edges,
    d: int,
    q: int,
    h: int,
    seed: int,
    with_edges: bool,
    dtype: torch.dtype = torch.float64,
) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=dtype).requires_grad_()

    m, n, e = layout.num_sources, layout.num_targets, layout.num_edges
    edge_hidden = draw(e, 2 * h) if with_edges else None
    second = [draw(d * d, h), draw(d * d), draw(d * d, h), draw(d * d)]
    return [draw(m, 2 * h), draw(n, 2 * h), edge_hidden, draw(m, d * q), draw(n, d * q), *second]


def value_and_gradients(function: Any, tensors: list[Tensor | None], *options: Any) -> list[Tensor]:
    out = function(*tensors, *options)
    weight = torch.linspace(-1, 1, out.numel(), dtype=out.dtype).sin().view_as(out)
    wanted = [t for t in tensors if t is not None]
    return [out.detach(), *torch.autograd.grad((out * weight).sum(), wanted)]


def disagreement(ours: list[Tensor], theirs: list[Tensor], d: int = 3) -> float:
    """Largest relative error, each tensor on its own, in the norm.

    Gradients much smaller than the others (for d = 1, where a normalised map is a sign, those of
    the generators vanish) are differences of larger numbers: their rounding is measured against the
    largest tensor.
    """
    floor = (1.0 if d == 1 else 0.1) * max((float(t.norm()) for t in theirs), default=1.0)
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        worst = max(worst, float((a - b).norm()) / max(float(b.norm()), floor, 1e-30))
    return worst


# ---------------------------------------------------------------------- agreement


@needs_native
@settings(max_examples=40, deadline=None)
@given(
    n=st.integers(0, 30),
    e=st.integers(0, 90),
    d=st.integers(1, 7),
    q=st.integers(1, 9),
    h=st.integers(1, 11),
    seed=st.integers(0, 10**6),
    edge_features=st.booleans(),
    pre_norm=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_step_agrees_with_the_reference(
    n: int,
    e: int,
    d: int,
    q: int,
    h: int,
    seed: int,
    edge_features: bool,
    pre_norm: bool,
    dtype: torch.dtype,
) -> None:
    graph = random_graph(n, e, seed, dtype=dtype)
    tensors = step_arguments(graph, d, q, h, seed, edge_features, dtype)
    options = (1.3, 2.0, pre_norm, graph.edges, d, q)
    with use_kernel("native"):
        ours = value_and_gradients(sheaf_step, tensors, *options)
    theirs = value_and_gradients(sheaf_step_reference, tensors, *options)
    if dtype == torch.float64:
        assert disagreement(ours, theirs, d) < 1e-11
        return
    # In float32 a hidden unit within rounding of zero may fall on either side of the rectifier:
    # compare with the exact value.
    assert disagreement(ours[:1], theirs[:1]) < 1e-5
    exact_tensors = [None if t is None else t.detach().double().requires_grad_() for t in tensors]
    exact = value_and_gradients(sheaf_step_reference, exact_tensors, *options)
    assert disagreement(ours, exact, d) < max(1e-5, 4 * disagreement(theirs, exact, d))


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("instruction_set", SETS)
def test_every_instruction_set_and_many_blocks(dtype: torch.dtype, instruction_set: str) -> None:
    layout = random_graph(700, 9000, 1, dtype=dtype).edges
    tensors = table_arguments(layout, 3, 16, 48, 1, True, dtype)
    options = (layout, 3, 16)
    with instruction_set_of(instruction_set):
        ours = value_and_gradients(sheaf_propagate, tensors, *options)
    assert (
        disagreement(ours, value_and_gradients(sheaf_propagate_reference, tensors, *options))
        < TOLERANCE[dtype]
    )


NARROW = [(3, 2, 6), (3, 2, 8), (2, 4, 8), (2, 1, 3), (1, 8, 8)]


@needs_native
@pytest.mark.parametrize("sizes", NARROW)
@pytest.mark.parametrize("edge_features", [False, True])
@pytest.mark.parametrize("instruction_set", SETS)
def test_steps_with_few_channels(
    sizes: tuple[int, int, int], edge_features: bool, instruction_set: str
) -> None:
    d, q, h = sizes
    graph = graphs.random_graph(203, 700, 9, dtype=torch.float64)  # some nodes hear nobody
    tensors = step_arguments(graph, d, q, h, 9, edge_features)
    options = (1.3, 2.0, True, graph.edges, d, q)
    with instruction_set_of(instruction_set):
        ours = value_and_gradients(sheaf_step, tensors, *options)
        single = [None if t is None else t.detach().float().requires_grad_() for t in tensors]
        value = value_and_gradients(sheaf_step, single, *options)[0]
    theirs = value_and_gradients(sheaf_step_reference, tensors, *options)
    assert disagreement(ours, theirs, d) < 1e-11
    assert disagreement([value.double()], theirs[:1]) < 1e-5


@needs_native
def test_the_comparison_rejects_a_wrong_gradient() -> None:
    graph = random_graph(10, 30, 3)
    tensors = step_arguments(graph, 2, 3, 4)
    exact = value_and_gradients(sheaf_step, tensors, 1.3, 2.0, True, graph.edges, 2, 3)
    wrong = [t.clone() for t in exact]
    wrong[5][0] += 1e-6 * wrong[5].abs().max()
    assert disagreement(wrong, exact, 2) > TOLERANCE[torch.float64]


@needs_native
@pytest.mark.parametrize("norm_order", [1.0, 3.0, math.inf])
def test_other_norms_use_the_same_edge_pass(norm_order: float) -> None:
    graph = random_graph(12, 40, 5)
    tensors = step_arguments(graph, 3, 4, 6)
    options = (1.3, norm_order, True, graph.edges, 3, 4)
    ours = value_and_gradients(sheaf_step, tensors, *options)
    assert disagreement(ours, value_and_gradients(sheaf_step_reference, tensors, *options)) < 1e-11


@needs_native
@settings(max_examples=25, deadline=None)
@given(
    n=st.integers(1, 12),
    m=st.integers(1, 40),
    e=st.integers(0, 60),
    d=st.integers(1, 4),
    seed=st.integers(0, 10**6),
    with_edges=st.booleans(),
    dtype=st.sampled_from([torch.float32, torch.float64]),
)
def test_propagation_reads_any_table(
    n: int, m: int, e: int, d: int, seed: int, with_edges: bool, dtype: torch.dtype
) -> None:
    generator = torch.Generator().manual_seed(seed)
    counts = torch.bincount(torch.randint(0, n, (e,), generator=generator), minlength=n)
    pointer = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)])
    source = torch.randint(0, m, (e,), generator=generator)
    weight = torch.rand(e, generator=generator, dtype=dtype)
    layout = Edges.build(source, pointer, weight, counts.clamp(min=1).to(dtype), m)
    tensors = table_arguments(layout, d, 3, 5, seed, with_edges, dtype)
    ours = value_and_gradients(sheaf_propagate, tensors, layout, d, 3)
    theirs = value_and_gradients(sheaf_propagate_reference, tensors, layout, d, 3)
    assert disagreement(ours, theirs, d) < TOLERANCE[dtype]


@needs_native
@pytest.mark.parametrize("d", [1, 2, 3, 7])
def test_gradcheck(d: int) -> None:
    graph = random_graph(6, 14, 2)
    tensors = step_arguments(graph, d, 2, 3, edge_features=True)
    layout = graph.edges

    def step(*inputs: Tensor) -> Tensor:
        return sheaf_step(*inputs, 1.3, 2.0, True, layout, d, 2)  # type: ignore[arg-type]

    assert torch.autograd.gradcheck(step, tensors, atol=1e-6, nondet_tol=0.0)


# ---------------------------------------------------------------------- limiting cases


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_graph_without_edges_keeps_its_values(dtype: torch.dtype) -> None:
    graph = random_graph(5, 0, dtype=dtype)
    tensors = step_arguments(graph, 3, 4, 5, dtype=dtype)
    out = sheaf_step(*tensors, 1.3, 2.0, True, graph.edges, 3, 4)  # type: ignore[arg-type]
    state, drive, mixing, channel = tensors[0], tensors[1], tensors[10], tensors[11]
    assert state is not None
    expected = torch.tanh((mixing @ state.view(5, 3, 4) @ channel).reshape(5, 12)) + 1.3 + drive  # type: ignore[operator]
    torch.testing.assert_close(out, expected)


@needs_native
def test_zero_maps_do_not_propagate_and_have_finite_gradients() -> None:
    graph = random_graph(6, 20, 4)
    tensors = step_arguments(graph, 3, 4, 5)
    for i in range(6, 10):
        tensors[i] = torch.zeros_like(tensors[i]).requires_grad_()  # type: ignore[arg-type]
    options = (1.3, 2.0, True, graph.edges, 3, 4)
    ours = value_and_gradients(sheaf_step, tensors, *options)
    assert all(bool(torch.isfinite(t).all()) for t in ours)
    assert disagreement(ours, value_and_gradients(sheaf_step_reference, tensors, *options)) < 1e-11


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize(("q", "h"), [(8, 16), (4, 8)])
def test_what_is_not_a_number_is_not_hidden(q: int, h: int, dtype: torch.dtype, bad: float) -> None:
    graph = Graph.build(torch.zeros(4, 1, dtype=dtype), torch.tensor([[0, 1, 2], [1, 2, 0]]))
    tensors = step_arguments(graph, 2, q, h, dtype=dtype)
    state = tensors[0].detach().clone()  # type: ignore[union-attr]
    state[0, 3] = bad
    out = sheaf_step(state, *tensors[1:], 1.3, 2.0, True, graph.edges, 2, q)  # type: ignore[arg-type]
    assert bool(torch.isnan(out[0]).any())
    assert bool(torch.isnan(out[1]).all())  # hears node 0
    assert bool(torch.isfinite(out[3]).all())  # hears nobody


# ---------------------------------------------------------------------- promises


@needs_native
@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize(("q", "h"), [(16, 24), (2, 6)])
def test_bitwise_repeatable_for_a_thread_count(q: int, h: int, threads: int) -> None:
    graph = random_graph(900, 20000, 6, dtype=torch.float32)
    tensors = step_arguments(graph, 3, q, h, 6, True, torch.float32)
    options = (1.3, 2.0, True, graph.edges, 3, q)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        first = value_and_gradients(sheaf_step, tensors, *options)
        second = value_and_gradients(sheaf_step, tensors, *options)
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    assert (
        disagreement(first[:1], value_and_gradients(sheaf_step_reference, tensors, *options)[:1])
        < 1e-5
    )


@needs_native
def test_nothing_of_the_size_of_the_edges_is_saved() -> None:
    graph = random_graph(100, 4000, 7)
    tensors = step_arguments(graph, 3, 4, 12)
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        sheaf_step(*tensors, 1.3, 2.0, True, graph.edges, 3, 4)  # type: ignore[arg-type]
    assert max(saved) <= 100 * 3 * 4


@pytest.mark.parametrize("kernel", ["native", "reference"])
@pytest.mark.parametrize("norm_order", [2.0, 3.0])
def test_weights_packed_once_are_the_same_weights(kernel: str, norm_order: float) -> None:
    if kernel == "native" and not native_available():
        pytest.skip("the native kernel is not built")
    graph = random_graph(20, 60, 3)
    tensors = step_arguments(graph, 3, 4, 12, edge_features=True)
    options = StepOptions(1.3, norm_order, True, graph.edges, 3, 4)
    weights = StepWeights.of(tensors[2:12])

    def through(given: Any) -> list[Tensor]:
        out = ops.sheaf_step(tensors[0], tensors[1], given, tensors[12], options)
        return [out, *torch.autograd.grad(out.square().sum(), weights.flat)]

    with use_kernel(kernel):
        apart, packed = through(weights), through(weights.packed())
    assert all(torch.equal(a, b) for a, b in zip(apart, packed, strict=True))
    for own, back in zip(weights.flat, weights.packed().apart.flat, strict=True):
        assert torch.equal(own, back)


def test_packed_weights_of_other_sizes_are_refused() -> None:
    graph = random_graph(20, 60, 3)
    tensors = step_arguments(graph, 3, 4, 12)
    packed = StepWeights.of(tensors[2:12]).packed()
    options = StepOptions(1.3, 2.0, True, graph.edges, 3, 4)
    for wrong in (
        packed._replace(values=packed.values[:-1]),
        packed._replace(h=11),
        packed._replace(q=5),
        packed._replace(values=packed.values.float()),
    ):
        with pytest.raises(InputError, match="packed weights"):
            ops.sheaf_step(tensors[0], tensors[1], wrong, None, options)


def test_reference_is_twice_differentiable_and_native_is_used_once_only() -> None:
    graph = random_graph(4, 8, 8)
    tensors = step_arguments(graph, 2, 2, 3)
    layout = graph.edges
    with use_kernel("reference"):
        out = sheaf_step(*tensors, 1.3, 2.0, True, layout, 2, 2)  # type: ignore[arg-type]
    (first,) = torch.autograd.grad(out.sum(), [tensors[0]], create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), [tensors[0]])
    assert bool(torch.isfinite(second).all())


def test_function_transforms_get_the_reference() -> None:
    graph = random_graph(4, 8, 8)
    tensors = step_arguments(graph, 2, 2, 3)
    layout = graph.edges
    rest = [None if t is None else t.detach() for t in tensors[1:]]

    def step(state: Tensor) -> Tensor:
        return sheaf_step(state, *rest, 1.3, 2.0, True, layout, 2, 2)  # type: ignore[arg-type]

    state = tensors[0].detach()  # type: ignore[union-attr]
    direction = torch.ones_like(state)
    _, forward_mode = torch.func.jvp(step, (state,), (direction,))
    numeric = (step(state + 1e-6 * direction) - step(state - 1e-6 * direction)) / 2e-6
    torch.testing.assert_close(forward_mode, numeric, atol=1e-6, rtol=1e-5)


# ---------------------------------------------------------------------- refusals


def test_malformed_layouts_are_refused() -> None:
    good = {
        "source": torch.tensor([0, 1, 1]),
        "pointer": torch.tensor([0, 2, 3]),
        "weight": torch.ones(3),
        "degree": torch.ones(2),
        "num_sources": 2,
    }
    Edges.build(**good)  # type: ignore[arg-type]
    for name, value in (
        ("source", torch.tensor([0, 1, 2])),
        ("source", torch.tensor([0, -1, 1])),
        ("source", torch.tensor([0.0, 1.0, 1.0])),
        ("source", torch.tensor([[0, 1, 1]])),
        ("pointer", torch.tensor([0, 2, 4])),
        ("pointer", torch.tensor([1, 2, 3])),
        ("pointer", torch.tensor([0, 4, 3])),
        ("pointer", torch.tensor([], dtype=torch.int64)),
        ("weight", torch.ones(2)),
        ("degree", torch.zeros(2)),
        ("degree", torch.tensor([1.0, math.inf])),
        ("num_sources", 1),
    ):
        with pytest.raises(InputError):
            Edges.build(**{**good, name: value})  # type: ignore[arg-type]


@needs_native
def test_the_extension_checks_for_itself() -> None:
    module = native_module()
    assert module is not None
    ones, pointer = torch.ones(2, dtype=torch.float64), torch.tensor([0, 1, 2])
    module.Layout(torch.tensor([0, 1]), pointer, ones, ones, 2)
    for source, offsets in (
        (torch.tensor([0, 5]), pointer),
        (torch.tensor([0, -1]), pointer),
        (torch.tensor([0, 2**40]), pointer),
        (torch.tensor([0, 1]), torch.tensor([0, 3, 2])),
        (torch.tensor([0, 1]), torch.tensor([0, 1, 5])),
    ):
        with pytest.raises(ValueError, match=r"source|pointer"):
            module.Layout(source, offsets, ones, ones, 2)


@needs_native
def test_a_layout_changed_afterwards_does_no_harm() -> None:
    graph = random_graph(5, 12, 9)
    tensors = step_arguments(graph, 2, 2, 3)
    layout = graph.edges
    options = (1.3, 2.0, True, layout, 2, 2)
    before = sheaf_step(*tensors, *options)  # type: ignore[arg-type]
    layout.source[:] = 10**6
    assert torch.equal(before, sheaf_step(*tensors, *options))  # type: ignore[arg-type]


def test_wrong_shapes_and_types_are_refused() -> None:
    graph = random_graph(5, 12, 9)
    layout = graph.edges
    for position in range(13):
        tensors = step_arguments(graph, 2, 2, 3, edge_features=True)
        tensors[position] = tensors[position].detach()[:-1]  # type: ignore[union-attr]
        with pytest.raises(InputError):
            sheaf_step(*tensors, 1.3, 2.0, True, layout, 2, 2)  # type: ignore[arg-type]
    tensors = step_arguments(graph, 2, 2, 3)
    tensors[1] = tensors[1].float()  # type: ignore[union-attr]
    with pytest.raises(InputError, match="float32"):
        sheaf_step(*tensors, 1.3, 2.0, True, layout, 2, 2)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="native"), use_kernel("fast"):
        pass
