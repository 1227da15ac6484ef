"""Bad input gets a ValueError that names what came, or the documented result: at least 2,000
generated cases."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from graphs import random_parts
from sheafdeq.adjoints import Truncated, adjoint_from
from sheafdeq.errors import InputError
from sheafdeq.models import SheafDEQ
from sheafdeq.solvers import Anderson, Picard, solver_from

MODEL = SheafDEQ(2, 3, 2, 2, steps=2)
EDGE_MODEL = SheafDEQ(2, 3, 2, 2, steps=2, edge_dim=2)


def good(n, e, seed):
    options = {"edge_dim": 2, "isolated": False, "dtype": torch.float32}
    return random_parts(n, e, seed, **options)[:3]


def spoil(kind, x, index, attr, where):
    n, e = x.shape[0], index.shape[1]
    row, col = where % n, where % e
    if kind == "nan feature":
        x[row, 0] = math.nan
    elif kind == "infinite feature":
        x[row, 1] = -math.inf
    elif kind == "index too large":
        index[where % 2, col] = n + where
    elif kind == "negative index":
        index[where % 2, col] = -1 - where
    elif kind == "float index":
        index = index.double()
    elif kind == "bool index":
        index = index.bool()
    elif kind == "index of three rows":
        index = torch.cat([index, index[:1]])
    elif kind == "flat index":
        index = index.flatten()
    elif kind == "transposed index":
        index = torch.cat([index, index, index], 1).T.contiguous()
    elif kind == "feature too many":
        x = torch.cat([x, x], 1)
    elif kind == "feature too few":
        x = x[:, :1]
    elif kind == "flat features":
        x = x.flatten()
    elif kind == "integer features":
        x = x.long()
    elif kind == "half features":
        x = x.half()
    elif kind == "double features":
        x = x.double()
    elif kind == "edge features missing":
        attr = None
    elif kind == "edge features surplus":
        attr = torch.cat([attr, attr], 1)
    elif kind == "edge features too short":
        attr = attr[:-1]
    elif kind == "edge features nan":
        attr[col, 0] = math.nan
    elif kind == "edge features flat":
        attr = attr[:, 0]
    elif kind == "edge features integer":
        attr = attr.long()
    elif kind == "list features":
        x = x.tolist()
    elif kind == "list index":
        index = index.tolist()
    return x, index, attr


KINDS = [
    "nan feature",
    "infinite feature",
    "index too large",
    "negative index",
    "float index",
    "bool index",
    "index of three rows",
    "flat index",
    "transposed index",
    "feature too many",
    "feature too few",
    "flat features",
    "integer features",
    "half features",
    "double features",
    "edge features missing",
    "edge features surplus",
    "edge features too short",
    "edge features nan",
    "edge features flat",
    "edge features integer",
    "list features",
    "list index",
]


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=90)
@given(
    n=st.integers(2, 6), e=st.integers(1, 9), seed=st.integers(0, 10**6), where=st.integers(0, 20)
)
def test_spoiled_input_is_named(kind, n, e, seed, where):
    x, index, attr = spoil(kind, *good(n, e, seed), where)
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the message is checked below
        EDGE_MODEL(x, index, attr)
    message = str(caught.value)
    assert isinstance(caught.value, InputError)
    assert any(word in message for word in ("x", "edge_index", "edge_attr", "features")), message
    assert any(word in message for word in ("got", "holds", "needs", "has", "are")), message


@settings(max_examples=100)
@given(n=st.integers(1, 6), e=st.integers(0, 9), seed=st.integers(0, 10**6))
def test_odd_but_legal_graphs_give_finite_outputs(n, e, seed):
    """Isolated nodes, self-loops, duplicate and directed edges, no edges at all: all documented,
    all finite."""
    x, index, _ = good(n, e, seed)
    output = MODEL(x, index)
    assert output.shape == (n, 3)
    assert bool(torch.isfinite(output).all())


def test_surplus_edge_features_are_refused_by_a_model_without_them():
    x, index, attr = good(3, 4, 0)
    with pytest.raises(InputError, match="edge_dim=2"):
        MODEL(x, index, attr)


def test_empty_graph_gives_an_empty_output():
    output, solution = MODEL(
        torch.zeros(0, 2), torch.zeros(2, 0, dtype=torch.long), return_info=True
    )
    assert output.shape == (0, 3)
    assert solution.residuals == [0.0, 0.0]


@pytest.mark.parametrize(
    "batch",
    [
        torch.tensor([1, 0, 1]),
        torch.tensor([0, 0]),
        torch.tensor([-1, 0, 0]),
        torch.zeros(3),
        [0, 0, 0],
    ],
)
def test_bad_batch_vectors(batch):
    with pytest.raises(InputError, match="batch"):
        MODEL(torch.zeros(3, 2), torch.zeros(2, 0, dtype=torch.long), None, batch)


def test_edges_between_graphs_of_a_batch_are_refused():
    with pytest.raises(InputError, match="different graphs"):
        MODEL(torch.zeros(2, 2), torch.tensor([[0], [1]]), None, torch.tensor([0, 1]))


@pytest.mark.parametrize("shift", [1.0, 0.5, 0.0, -2.0, math.nan, math.inf])
def test_shift_of_one_or_less_is_refused(shift):
    with pytest.raises(InputError, match="shift"):
        SheafDEQ(2, 2, shift=shift)


@pytest.mark.parametrize("order", [0, 0.5, -1, math.nan])
def test_norm_order_below_one_is_refused(order):
    with pytest.raises(InputError, match="norm_order"):
        SheafDEQ(2, 2, norm_order=order)


@pytest.mark.parametrize(
    "sizes",
    [(0, 2, 3, 4), (2, 0, 3, 4), (2, 2, 0, 4), (2, 2, 3, 0), (2.5, 2, 3, 4), (True, 2, 3, 4)],
)
def test_bad_sizes_are_refused(sizes):
    with pytest.raises(InputError, match="positive integer"):
        SheafDEQ(*sizes)


@pytest.mark.parametrize(
    "make",
    [
        lambda: Picard(steps=-1),
        lambda: Picard(steps=2.5),
        lambda: Picard(tolerance=0.0),
        lambda: Picard(tolerance=-1e-3),
        lambda: Picard(damping=0.0),
        lambda: Picard(damping=1.5),
        lambda: Picard(tolerance=None, stop_early=True),
        lambda: Picard(distance="cosine"),
        lambda: Anderson(window=0),
        lambda: Anderson(mixing=0.0),
        lambda: Truncated(0),
        lambda: solver_from("newton", 3),
        lambda: adjoint_from("backprop"),
        lambda: adjoint_from("truncated:x"),
        lambda: MODEL(torch.zeros(2, 2), torch.zeros(2, 0, dtype=torch.long), steps=-3),
        lambda: MODEL(
            torch.zeros(2, 2), torch.zeros(2, 0, dtype=torch.long), initial_state=torch.ones(3, 4)
        ),
        lambda: MODEL(
            torch.zeros(2, 2), torch.zeros(2, 0, dtype=torch.long), initial_state=torch.ones(2, 5)
        ),
    ],
)
def test_bad_settings_are_refused(make):
    with pytest.raises(InputError):
        make()
