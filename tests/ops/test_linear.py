"""Dense layers by the native kernel against PyTorch, finite differences, and their own promises."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from ops.test_sheaf_step import SETS, TOLERANCE, disagreement, instruction_set_of, needs_native
from sheafdeq.layers.dense import Dense
from sheafdeq.layers.initialise import linear as make_linear
from sheafdeq.ops import linear as module_of_linear
from sheafdeq.ops import use_kernel
from sheafdeq.ops.linear import _Linear, linear
from sheafdeq.ops.native_module import native_module


def arguments(rows: int, i: int, o: int, dtype: Any, bias: bool = True) -> list[Tensor | None]:
    generator = torch.Generator().manual_seed(rows + 7 * i + o)
    shapes = [(rows, i), (o, i), (o,)]
    made: list[Tensor | None] = [
        torch.randn(shape, generator=generator, dtype=dtype).requires_grad_() for shape in shapes
    ]
    return made if bias else [*made[:2], None]


def value_and_gradients(function: Any, tensors: list[Tensor | None]) -> list[Tensor]:
    out = function(*tensors)
    cotangent = torch.linspace(-1, 2, out.numel(), dtype=out.dtype).view(out.shape)
    given = [t for t in tensors if t is not None]
    return [out.detach(), *torch.autograd.grad(out, given, cotangent)]


def is_native(*tensors: Tensor | None) -> bool:
    result = linear(*tensors)  # type: ignore[arg-type]
    return type(result.grad_fn).__name__ == f"{_Linear.__name__}Backward"


@needs_native
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("instruction_set", SETS)
@pytest.mark.parametrize("bias", [True, False])
def test_it_is_the_layer_of_pytorch(dtype: torch.dtype, instruction_set: str, bias: bool) -> None:
    with instruction_set_of(instruction_set):
        for rows, i, o in [(256, 16, 16), (1000, 48, 144), (999, 96, 32), (2311, 16, 112)]:
            tensors = arguments(rows, i, o, dtype, bias)
            assert is_native(*tensors)
            ours = value_and_gradients(linear, tensors)
            theirs = value_and_gradients(functional.linear, tensors)
            assert disagreement(ours, theirs) < TOLERANCE[dtype]


@needs_native
@settings(max_examples=25, deadline=None)
@given(st.integers(0, 700), st.integers(1, 70), st.integers(1, 70))
def test_any_sizes_by_whichever_route(rows: int, i: int, o: int) -> None:
    tensors = arguments(rows, i, o, torch.float64)
    ours = value_and_gradients(linear, tensors)
    assert disagreement(ours, value_and_gradients(functional.linear, tensors)) < 1e-11


@needs_native
def test_finite_differences_and_the_second_derivative() -> None:
    tensors = arguments(256, 8, 8, torch.float64)
    few = [torch.randn(3, 256, dtype=torch.float64), *tensors]

    def small(mix: Tensor, *given: Tensor) -> Tensor:
        """A few numbers, so that finite differences are affordable."""
        return (mix @ linear(*given).tanh())[:, :2]

    assert is_native(*tensors)
    assert torch.autograd.gradcheck(small, few, fast_mode=True)  # type: ignore[arg-type]
    assert torch.autograd.gradgradcheck(small, few, fast_mode=True)  # type: ignore[arg-type]


@needs_native
def test_rows_may_lie_apart_and_gradients_may_be_expanded() -> None:
    wide = torch.randn(300, 64, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(16, 32, dtype=torch.float64, requires_grad=True)
    for x in (wide[:, :32], wide[::1, 32:]):
        ours = torch.autograd.grad(linear(x, weight).sum(), [wide, weight])
        theirs = torch.autograd.grad(functional.linear(x, weight).sum(), [wide, weight])
        assert disagreement(list(ours), list(theirs)) < 1e-11
    turned = torch.randn(32, 300, dtype=torch.float64).T  # columns lie together: PyTorch's
    assert torch.equal(linear(turned, weight), functional.linear(turned, weight))


@needs_native
def test_only_what_is_wanted_is_differentiated() -> None:
    x, weight, bias = arguments(256, 16, 16, torch.float64)
    assert x is not None
    assert weight is not None
    assert bias is not None
    for wanted in ([x], [weight], [bias], [x, bias]):
        given = [t if any(t is w for w in wanted) else t.detach() for t in (x, weight, bias)]
        ours = torch.autograd.grad(linear(*given).sin().sum(), wanted)
        theirs = torch.autograd.grad(functional.linear(*given).sin().sum(), wanted)
        assert disagreement(list(ours), list(theirs)) < 1e-11


@needs_native
def test_runs_repeat_bit_for_bit_for_a_number_of_threads() -> None:
    tensors = arguments(40_000, 48, 48, torch.float32)
    before = torch.get_num_threads()
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            first, again = (value_and_gradients(linear, tensors) for _ in range(2))
            assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
            exact = value_and_gradients(
                functional.linear,
                [t.detach().double().requires_grad_() for t in tensors if t is not None],
            )
            assert disagreement([t.double() for t in first], exact) < 1e-5
    finally:
        torch.set_num_threads(before)


@needs_native
def test_nan_and_infinity_stay_where_they_are() -> None:
    x, weight, bias = (t.detach() for t in arguments(256, 16, 16, torch.float32) if t is not None)
    x[7, 3], x[200, 5] = float("nan"), float("inf")
    out = linear(x, weight, bias)
    assert out[7].isnan().all()
    assert not out[200].isfinite().any()
    kept = torch.ones(256, dtype=torch.bool)
    kept[[7, 200]] = False
    assert out[kept].isfinite().all()


@needs_native
def test_who_asks_for_pytorch_gets_it() -> None:
    tensors = arguments(256, 16, 16, torch.float32)
    assert is_native(*tensors)
    with use_kernel("reference"):
        assert not is_native(*tensors)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert linear(*tensors).dtype == torch.bfloat16  # type: ignore[arg-type]
    assert not is_native(*arguments(module_of_linear.FEWEST_ROWS - 1, 16, 16, torch.float32))
    assert not is_native(*arguments(256, 16, 3, torch.float32))
    values = torch.func.vmap(lambda row: linear(row, tensors[1].detach()))(torch.ones(2, 300, 16))  # type: ignore[union-attr]
    assert values.shape == (2, 300, 16)


@needs_native
def test_wrong_shapes_are_refused_before_anything_is_read() -> None:
    module = native_module()
    assert module is not None
    x, columns, out = torch.ones(300, 16), torch.ones(16, 32), torch.empty(300, 32)
    module.dense_forward_float(x, columns, None, out, 1)
    for wrong in (
        (x, columns[:8], None, out, 1),
        (x, columns, torch.ones(8), out, 1),
        (x, columns, None, out[:9], 1),
        (x, torch.ones(16, 7), None, torch.empty(300, 7), 1),
        (x, columns, None, out, 0),
    ):
        with pytest.raises(ValueError, match=r"must|wrong"):
            module.dense_forward_float(*wrong)
    grad, weight_grad = torch.ones(300, 32), torch.empty(32, 16)
    module.dense_gradient_float(x, grad, weight_grad, None, 1)
    assert torch.equal(weight_grad, torch.full((32, 16), 300.0))
    for wrong_gradient in (
        (x, grad[:9], weight_grad, None, 1),
        (x, grad, weight_grad.T, None, 1),
        (x, grad, weight_grad, torch.empty(3), 1),
    ):
        with pytest.raises(ValueError, match=r"must|wrong"):
            module.dense_gradient_float(*wrong_gradient)


def test_a_dense_layer_is_a_linear_layer() -> None:
    layer = Dense(16, 32)
    assert isinstance(layer, nn.Linear)
    twin = nn.Linear(16, 32)
    twin.load_state_dict(layer.state_dict())
    x = torch.randn(300, 16)
    assert disagreement([layer(x).detach()], [twin(x).detach()]) < 1e-5
    lazy = make_linear(-1, 32)
    assert lazy(x).shape == (300, 32)
    assert type(lazy) is Dense
