"""Numbers at the edges of what a float holds, in kernel and reference, judged in exact or higher
precision."""

import copy
from fractions import Fraction

import pytest
import torch

from ops.test_sheaf_step import needs_native
from sheafdeq.data.graph import Graph
from sheafdeq.distances import THOMPSON
from sheafdeq.errors import InputError
from sheafdeq.layers.gates import GATES
from sheafdeq.layers.rows import bounded_rows, scaled_rows, unit_rows
from sheafdeq.models import SheafCascade, SheafDEQ, StrongSheafDEQ
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.ops import use_kernel
from sheafdeq.ops.gated_step import two_parts
from sheafdeq.ops.native_calls import native_layout
from sheafdeq.solvers import Picard
from sheafdeq.threads import set_threads, thread_count

KERNELS = [pytest.param("native", marks=needs_native), "reference"]


def ring(n=8, f=3, dtype=torch.float32, seed=0):
    source = torch.arange(n)
    edges = torch.stack(
        [torch.cat([source, (source + 1) % n]), torch.cat([(source + 1) % n, source])]
    )
    return Graph.build(
        torch.randn(n, f, generator=torch.Generator().manual_seed(seed)).to(dtype), edges
    )


# ---------------------------------------------------------------------- cancellation in the split
# gates


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("gate", sorted(GATES))
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
@pytest.mark.parametrize("seed", range(3))
def test_a_float32_step_of_a_guaranteed_model_is_right_whatever_its_weights(
    seed, size, gate, kernel
):
    """y+ and y- from rounded p and g lost everything at weights of 1000: an exact residual of 1.47
    was called converged."""
    torch.manual_seed(seed)
    graph = ring(seed=seed)
    model = StrongSheafDEQ(3, 2, 3, 8, gate=gate, shift=2.0, steps=300)
    with torch.no_grad():
        model.channel_mixing.mul_(size)
        model.stalk_mixing.mul_(size)
        exact_model, exact_graph = copy.deepcopy(model).double(), graph.to(torch.float64)
        with use_kernel(kernel):
            state = model.run(graph).solution.value
            image = model.step(state, model.prepare(graph))
            local = model.local_step(state, state[graph.source], model.prepare(graph))
            exact = exact_model.step(state.double(), exact_model.prepare(exact_graph))
    assert float(THOMPSON(image.double(), exact).max()) < 1e-5
    assert float(THOMPSON(local.double(), exact).max()) < 1e-5


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("size", [1.0, 1e3, 1e6])
def test_a_level_of_a_cascade_is_right_whatever_its_channel_mixing(size, kernel):
    torch.manual_seed(1)
    graph = ring(seed=1)
    model = SheafCascade(3, 2, 3, 8, levels=1).eval()
    with torch.no_grad(), use_kernel(kernel):
        model.level_modules[0].channel_mixing.mul_(size)
        context = model.prepare(graph)
        sheaf = model.sheaf(0, None, context)
        state = torch.rand(8, 24) + 0.5
        image = model.level_map(0, sheaf, context)(state)
        # the same float32 blocks, in float64
        model.double()
        wide = type(sheaf)(sheaf.blocks.double(), sheaf.diagonal.double(), sheaf.drive.double())
        exact = model.level_map(0, wide, model.prepare(graph.to(torch.float64)))(state.double())
    assert float(THOMPSON(image.double(), exact).max()) < 1e-5


@pytest.mark.parametrize("size", [1.0, 1e4])
def test_attention_is_right_whatever_its_mixing(size):
    torch.manual_seed(2)
    graph = ring(seed=2)
    model = StrongAttnDEQ(3, 2, 2, 8, shift=2.0)
    with torch.no_grad():
        model.mixing.weight.mul_(size)
        state = torch.rand(8, 16) + 0.5
        image = model.step(state, model.prepare(graph))
        exact = (
            copy.deepcopy(model)
            .double()
            .step(state.double(), copy.deepcopy(model).double().prepare(graph.to(torch.float64)))
        )
    # the products W V themselves are rounded
    assert float(THOMPSON(image.double(), exact).max()) < 1e-4


def test_two_parts_are_exact_and_share_the_slope_at_zero():
    values = torch.tensor([3.5, -2.25, 0.0, 1e-30, -1e30], dtype=torch.float64, requires_grad=True)
    plus, minus = two_parts(values)
    assert [
        Fraction(p) - Fraction(m) for p, m in zip(plus.tolist(), minus.tolist(), strict=True)
    ] == [Fraction(v) for v in values.tolist()]
    assert bool(((plus == 0) | (minus == 0)).all())
    (slope,) = torch.autograd.grad(plus.sum() + 2 * minus.sum(), values)
    assert slope.tolist() == [1.0, -2.0, -0.5, 1.0, -2.0]


@pytest.mark.parametrize("gate", sorted(GATES))
def test_gates_saturate_where_sums_overflow(gate):
    inf = torch.tensor([float("inf"), float("inf"), 3e38, 0.0])
    other = torch.tensor([0.0, float("inf"), 3e38, float("inf")])
    result = GATES[gate].of_parts(inf, other)
    assert bool(torch.isfinite(result).all())
    assert bool((result.abs() <= 1).all())
    p, g = torch.tensor([0.3, -0.2]), torch.tensor([0.5, 0.2])
    assert torch.allclose(GATES[gate].apply(p, g), GATES[gate].of_parts((g + p) / 2, (g - p) / 2))


# ---------------------------------------------------------------------- every positive start


GUARANTEED = {
    "sheaf": lambda: StrongSheafDEQ(3, 2, 2, 4, steps=400),
    "attention": lambda: StrongAttnDEQ(3, 2, 2, 4, steps=400),
    "cascade": lambda: SheafCascade(3, 2, 2, 4, levels=3),
}
STARTS = {
    torch.float32: (1e-45, 1e-30, 1e-24, 1.0, 1e18, 1e20, 3e38),
    torch.float64: (5e-324, 1e-200, 1e-165, 1.0, 1e160, 1.7e308),
}


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", sorted(GUARANTEED))
def test_every_positive_start_reaches_the_one_equilibrium(kind, dtype, kernel):
    torch.manual_seed(3)
    model, graph = GUARANTEED[kind]().to(dtype).eval(), ring(dtype=dtype, seed=3)
    ends = []
    tolerance = 1e-6 if dtype == torch.float32 else 1e-8
    solver = Picard(400, tolerance=tolerance, stop_early=True)
    with torch.no_grad(), use_kernel(kernel):
        context = model.prepare(graph)
        for size in STARTS[dtype]:
            start = torch.full_like(model.initial_state(context), size)
            solution = model.run(graph, initial_state=start, solver=solver).solution
            assert solution.converged, (size, str(solution))
            ends.append(solution.value)
    for end in ends:
        assert float(THOMPSON(end, ends[0]).max()) < (1e-4 if dtype == torch.float32 else 1e-5)


@pytest.mark.parametrize("kind", sorted(GUARANTEED))
@pytest.mark.parametrize("size", [1e-30, 1e-24, 1e20, 1e30])
def test_one_step_from_far_outside_is_finite(kind, size):
    torch.manual_seed(4)
    model, graph = GUARANTEED[kind]().eval(), ring(seed=4)
    with torch.no_grad():
        context = model.prepare(graph)
        state = size * (torch.rand_like(model.initial_state(context)) + 0.5)
        image = model.step(state, context)
        assert bool(torch.isfinite(image).all())
        assert bool((image > 0).all())
        exact = copy.deepcopy(model).double()
        assert (
            float(
                THOMPSON(
                    image.double(),
                    exact.step(state.double(), exact.prepare(graph.to(torch.float64))),
                ).max()
            )
            < 1e-4
        )


def test_rows_are_scaled_without_changing_a_bit():
    rows = torch.rand(500, 12) + 0.1
    assert torch.equal(unit_rows(rows), rows / torch.linalg.vector_norm(rows, dim=1, keepdim=True))
    assert torch.equal(bounded_rows(rows), rows)
    for power in (-120, -60, 60, 100):
        assert torch.equal(scaled_rows(rows * 2.0**power), scaled_rows(rows))
    assert scaled_rows(torch.zeros(2, 3)).tolist() == [[0.0] * 3] * 2
    assert scaled_rows(torch.zeros(2, 0)).shape == (2, 0)


# ---------------------------------------------------------------------- overflow in the norms of
# maps


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=["float32", "float64"])
@pytest.mark.parametrize("size", [1.0, 1e15, 1e18, 1e20, 1e30, 1e35])
@needs_native
def test_maps_of_unnormalised_states_do_not_overflow(size, dtype):
    """Without pre-norm, squares of the raw maps overflowed from states of 1e18; the reference was
    finite."""
    torch.manual_seed(5)
    size = size if dtype == torch.float32 else size**8
    model, graph = SheafDEQ(3, 2, 3, 8, pre_norm=False).to(dtype), ring(dtype=dtype, seed=5)
    state = (torch.rand(8, 24, dtype=dtype) + 0.5).mul_(size).requires_grad_()
    context = model.prepare(graph)
    ours = model.step(state, context)
    with use_kernel("reference"):
        theirs = model.step(state, context)
    assert bool(torch.isfinite(ours).all())
    assert torch.allclose(ours, theirs, rtol=1e-4, atol=1e-4)
    gradients = []
    for result in (ours, theirs):
        gradients.append(
            torch.autograd.grad(
                result.sum(), [state, *model.source_maps.parameters()], allow_unused=True
            )
        )
    for mine, reference in zip(*gradients, strict=True):
        assert bool(torch.isfinite(mine).all())
        assert torch.allclose(mine, reference, rtol=1e-3, atol=1e-3 * float(reference.abs().max()))


@pytest.mark.parametrize("kernel", KERNELS)
def test_maps_of_a_cascade_with_huge_generators_stay_maps(kernel):
    torch.manual_seed(6)
    model, graph = SheafCascade(3, 2, 2, 4, levels=2).eval(), ring(seed=6)
    with torch.no_grad(), use_kernel(kernel):
        expected = model.prepare(graph)
        model.level_modules[0].maps.weight.mul_(2.0**90)
        model.level_modules[0].maps.bias.mul_(2.0**90)
        scaled = model.prepare(graph)
    assert torch.allclose(scaled.first_blocks, expected.first_blocks, atol=1e-5)


# ---------------------------------------------------------------------- threads


def test_too_many_threads_are_refused_by_name():
    before = torch.get_num_threads()
    for count in (100_000, 0, -1, 2.0, True, "4"):
        with pytest.raises(InputError, match="threads must be an integer from 1 to 1024"):
            set_threads(count)
    assert torch.get_num_threads() == before
    set_threads(before)
    assert thread_count() == before


@needs_native
def test_the_kernel_refuses_them_itself():
    native = native_layout(ring().edges)
    assert native.threads(1024) == 1
    for count in (100_000, 0, -5):
        with pytest.raises(ValueError, match="threads must be between 1 and 1024"):
            native.threads(count)


def test_an_extension_of_other_sources_is_not_used(monkeypatch):
    """Calls that do not fit would fail deep inside a model; the reference serves until it is built
    again."""
    import importlib
    from types import SimpleNamespace

    from sheafdeq.errors import KernelWarning
    from sheafdeq.ops import native_module as finding

    other_floor = SimpleNamespace(interface=finding.INTERFACE, norm_floor=1e-6)
    for module in (SimpleNamespace(interface=1), other_floor):
        with monkeypatch.context() as patch:
            patch.setattr(importlib, "import_module", lambda name, module=module: module)
            finding.native_module.cache_clear()
            try:
                with pytest.warns(KernelWarning, match="build it again"):
                    assert finding.native_module() is None
            finally:
                patch.undo()
                finding.native_module.cache_clear()
