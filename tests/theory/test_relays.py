"""Proposition 37 and Theorem 38, on dense matrices written out here."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse.csgraph import connected_components

SEEDS = st.integers(0, 100_000)


def gathering(edges: list[tuple[int, int]]) -> np.ndarray:
    """(e, e) one where edge i gathers edge j, by the definition."""
    return np.array([[float(b == u and a != v) for a, b in edges] for u, v in edges]).reshape(
        len(edges), -1
    )


def core(edges: list[tuple[int, int]], n: int) -> set[int]:
    """Nodes of the 2-core, one leaf at a time."""
    neighbours = {v: set() for v in range(n)}
    for u, v in edges:
        if u != v:
            neighbours[u].add(v)
            neighbours[v].add(u)
    while leaves := [v for v in neighbours if len(neighbours[v]) <= 1]:
        for other in neighbours.pop(leaves[0]):
            neighbours[other].discard(leaves[0])
    return set(neighbours)


def drawn(seed: int) -> tuple[list[tuple[int, int]], int, np.random.Generator]:
    random = np.random.default_rng(seed)
    n = int(random.integers(2, 9))
    pairs = random.integers(0, n, (int(random.integers(1, 14)), 2))
    edges = [(int(u), int(v)) for u, v in pairs if u != v]
    return edges + [(v, u) for u, v in edges if random.random() < 0.7], n, random


@given(SEEDS)
def test_theorem_38a_cycles_of_gathering_lie_in_the_core(seed):
    edges, n, _ = drawn(seed)
    if not edges:
        return
    relation = gathering(edges)
    _, label = connected_components(relation, directed=True, connection="strong")
    inside = core(edges, n)
    for k, (u, v) in enumerate(edges):
        on_a_cycle = np.count_nonzero(label == label[k]) > 1 or relation[k, k] > 0
        assert not on_a_cycle or (u in inside and v in inside)


@given(SEEDS)
def test_theorem_38b_the_spectral_radius_is_at_most_kappa_and_38c_forests_are_nilpotent(seed):
    edges, n, random = drawn(seed)
    if not edges:
        return
    relation, inside, kappa, d = gathering(edges), core(edges, n), 0.7, 2
    in_core = np.array([u in inside and v in inside for u, v in edges])
    transports = 10.0 ** random.uniform(-1, 3) * random.standard_normal((len(edges), d, d))
    for k in np.flatnonzero(in_core):
        gathered = max(1, int(relation[k] @ in_core))
        transports[k] *= kappa / gathered / np.abs(transports[k]).sum(1, keepdims=True)
    jacobian = np.einsum("ef,eij->eifj", relation, np.abs(transports)).reshape(len(edges) * d, -1)
    # Off-diagonal blocks may be of size 1e3: eigenvalues of the blocks themselves, component by
    # component.
    _, label = connected_components(relation, directed=True, connection="strong")
    for part in range(label.max() + 1):
        rows = np.repeat(label == part, d)
        radius = np.abs(np.linalg.eigvals(jacobian[np.ix_(rows, rows)])).max()
        assert radius <= kappa * (1 + 1e-9)
    if not inside:
        power = np.linalg.matrix_power(relation, len(edges))
        assert not power.any()


def test_theorem_38_needs_its_bound():
    """On a triangle with transports of one the messages go round for ever: the bound is not
    decoration."""
    edges = [(0, 1), (1, 2), (2, 0), (1, 0), (2, 1), (0, 2)]
    assert np.abs(np.linalg.eigvals(gathering(edges))).max() == pytest.approx(1.0)


@given(SEEDS, st.floats(0.3, 0.95))
def test_proposition_37_a_contraction_forgets(seed, q):
    """x -> q tanh(mixing of neighbours) + B on a path: the far end matters at most as the bound
    says."""
    random = np.random.default_rng(seed)
    n = 12
    mixing = np.zeros((n, n))
    for v in range(n):
        for u in (v - 1, v, v + 1):
            if 0 <= u < n:
                mixing[v, u] = random.standard_normal()
    mixing /= np.abs(mixing).sum(1, keepdims=True)
    drive = random.standard_normal(n)
    other = drive.copy()
    other[-1] += 10 * random.standard_normal()

    def solve(b: np.ndarray) -> tuple[np.ndarray, float]:
        x = np.zeros(n)
        first = np.abs(q * np.tanh(mixing @ x) + b - x).max()
        for _ in range(2000):
            x = q * np.tanh(mixing @ x) + b
        return x, float(first)

    (x, rho), (y, rho_other) = solve(drive), solve(other)
    for v in range(n - 1):
        k = n - 1 - v
        assert abs(x[v] - y[v]) <= 2 * max(rho, rho_other) * q**k / (1 - q) + 1e-12
