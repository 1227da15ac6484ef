"""Nearest-neighbour graphs, without a Python loop over nodes or edges."""

from __future__ import annotations

import numpy as np
from scipy.spatial import cKDTree

__all__ = ["neighbour_pairs", "unordered_pairs"]


def neighbour_pairs(points: np.ndarray, k: int) -> np.ndarray:
    """(m, 2) pairs (node, neighbour): the k Euclidean nearest of each of the n rows of ``points``,
    itself excluded.

    Fewer than k other points: all of them. Coincident points are told apart by index, never by
    position.
    """
    n = points.shape[0]
    k = min(k, n - 1)
    if k < 1:
        return np.empty((0, 2), dtype=np.int64)
    _, nearest = cKDTree(points).query(points, k=k + 1)
    own = np.arange(n)[:, None]
    is_self = nearest == own
    # With coincident points the node itself may be missing from its list: then the farthest entry
    # goes.
    missing = ~is_self.any(axis=1)
    is_self[missing, -1] = True
    return np.column_stack([np.repeat(np.arange(n), k), nearest[~is_self]])


def unordered_pairs(pairs: np.ndarray, n: int) -> np.ndarray:
    """The distinct unordered pairs {u, v}, u < v, sorted, of the (m, 2) ``pairs``: the symmetrised
    union."""
    low, high = pairs.min(axis=1), pairs.max(axis=1)
    keys = np.sort(low * np.int64(n) + high)
    keys = keys[np.append(True, keys[1:] != keys[:-1])] if len(keys) else keys
    return np.column_stack([keys // n, keys % n])
