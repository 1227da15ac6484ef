"""Where nodes are drawn. Every layout is (n, 2) in the unit square, deterministic, and computed
once in Python."""

from __future__ import annotations

import numpy
from numpy.typing import NDArray
from scipy.sparse import coo_matrix, diags
from scipy.sparse.csgraph import connected_components
from scipy.sparse.linalg import LinearOperator, lobpcg

__all__ = ["by_class", "by_edges", "by_features", "layouts"]

Points = NDArray[numpy.float64]
Indices = NDArray[numpy.int64]

_GOLDEN = numpy.pi * (3 - numpy.sqrt(5))
_REPULSORS = 120  # nodes that push in one round: a sample, so that a round costs n rather than n^2
_MOST_CLASSES = 12


def layouts(
    source: Indices,
    target: Indices,
    n: int,
    classes: Indices | None = None,
    features: Points | None = None,
) -> dict[str, Points]:
    """All layouts that make sense, the most telling first.

    Where neighbours mostly differ in class, drawing by edges shows a ball; groups by class then
    show more.
    """
    made: dict[str, Points] = {"by the edges": by_edges(source, target, n)}
    if classes is not None and 1 < len(numpy.unique(classes)) <= _MOST_CLASSES:
        made["by class"] = by_class(classes)
        alike = float((classes[source] == classes[target]).mean()) if len(source) else 0.0
        if alike < 0.7:
            made = {"by class": made["by class"], "by the edges": made["by the edges"]}
    if features is not None and features.shape[1] == 2 and n:
        made["by the two features"] = by_features(features)
    return {name: _centred(points) for name, points in made.items()}


def by_features(features: Points) -> Points:
    """Two features are a plane already."""
    return _fitted(numpy.asarray(features, dtype=float))


def by_class(classes: Indices) -> Points:
    """One disc for each class, evenly filled (golden-angle spiral), the discs in a ring."""
    names = numpy.unique(classes)
    points = numpy.zeros((len(classes), 2))
    largest = max(int((classes == name).sum()) for name in names)
    ring = 0.0 if len(names) == 1 else 1.12 / numpy.sin(numpy.pi / len(names))
    for place, name in enumerate(names):
        members = numpy.flatnonzero(classes == name)
        k = numpy.arange(len(members))
        radius = numpy.sqrt((k + 0.5) / largest)
        angle = _GOLDEN * k
        turn = 2 * numpy.pi * place / len(names) - numpy.pi / 2
        centre = ring * numpy.array([numpy.cos(turn), numpy.sin(turn)])
        points[members] = centre + numpy.stack(
            [radius * numpy.cos(angle), radius * numpy.sin(angle)], axis=1
        )
    return _fitted(points)


def by_edges(
    source: Indices, target: Indices, n: int, *, rounds: int = 100, seed: int = 0
) -> Points:
    """Springs along edges, repulsion between nodes; each connected component by itself, the
    components packed in rows."""
    if n == 0:
        return numpy.zeros((0, 2))
    ones = numpy.ones(len(source))
    adjacency = coo_matrix((ones, (source, target)), shape=(n, n)).tocsr()
    adjacency = ((adjacency + adjacency.T) > 0).astype(float)
    adjacency.setdiag(0)
    adjacency.eliminate_zeros()
    count, component = connected_components(adjacency, directed=False)
    sizes = numpy.bincount(component, minlength=count)
    boxes = []
    for number in numpy.argsort(-sizes, kind="stable"):
        members = numpy.flatnonzero(component == number)
        part = adjacency[members][:, members].tocoo()
        points = _springs(part, len(members), rounds, seed)
        boxes.append((members, _fitted(points) * numpy.sqrt(len(members))))
    return _fitted(_packed(boxes, n))


def _springs(adjacency: coo_matrix, n: int, rounds: int, seed: int) -> Points:
    """Fruchterman and Reingold from a spectral start; the temperature falls linearly."""
    draw = numpy.random.default_rng(seed)
    if n == 1:
        return numpy.zeros((1, 2))
    points = _spectral(adjacency, n, draw)
    ideal = 1 / numpy.sqrt(n)
    i, j = adjacency.row, adjacency.col
    for turn in range(rounds):
        heat = 0.1 * (1 - turn / rounds) + 1e-3
        others = draw.choice(n, size=min(n, _REPULSORS), replace=False)
        gap = points[:, None, :] - points[None, others, :]
        squared = (gap**2).sum(-1) + 1e-6
        force = (gap / squared[..., None]).sum(1) * ideal**2 * (n / len(others))
        along = points[j] - points[i]
        pull = along * (numpy.linalg.norm(along, axis=1, keepdims=True) / ideal)
        numpy.add.at(force, i, pull)
        force -= 0.05 * points  # keeps the whole from drifting
        length = numpy.linalg.norm(force, axis=1, keepdims=True) + 1e-12
        points = points + force / length * numpy.minimum(length, heat)
    return points


def _spectral(adjacency: coo_matrix, n: int, draw: numpy.random.Generator) -> Points:
    """The two slowest modes of the random walk, a little shaken; small graphs start at random."""
    noise = draw.normal(size=(n, 2))
    if n < 20:
        return noise
    root = diags(1 / numpy.sqrt(numpy.maximum(adjacency.sum(1).A1, 1)))
    walk = root @ adjacency.tocsr() @ root
    trivial = numpy.sqrt(numpy.maximum(adjacency.sum(1).A1, 1))[:, None]
    shifted = LinearOperator(
        (n, n), matvec=lambda v: 2 * v - walk @ v, matmat=lambda v: 2 * v - walk @ v, dtype=float
    )
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a rough start is enough: the springs do the rest
        _, modes = lobpcg(
            shifted,
            noise,
            Y=trivial / numpy.linalg.norm(trivial),
            largest=False,
            maxiter=60,
            tol=1e-3,
        )
    result: Points = modes / (numpy.abs(modes).max(0) + 1e-12) + 0.02 * noise
    return result


def _packed(boxes: list[tuple[Indices, Points]], n: int) -> Points:
    """Components in rows of about the width of a square, largest first."""
    points = numpy.zeros((n, 2))
    total = sum((box.max(0)[0] + 0.6) * (box.max(0)[1] + 0.6) for _, box in boxes)
    width = max(numpy.sqrt(total), max(box.max(0)[0] for _, box in boxes))
    x = y = height = 0.0
    for members, box in boxes:
        wide, high = box.max(0)
        if x > 0 and x + wide > width * 1.001:
            x, y, height = 0.0, y + height + 0.6, 0.0
        points[members] = box + numpy.array([x, y])
        x, height = x + wide + 0.6, max(height, high)
    return points


def _centred(points: Points) -> Points:
    """The same, with equal space on opposite sides."""
    return points + (1 - points.max(0)) / 2 if len(points) else points


def _fitted(points: Points) -> Points:
    """Into the unit square from its corner, proportions kept; a single point in the middle."""
    if len(points) == 0:
        return points
    low, high = points.min(0), points.max(0)
    size = float((high - low).max())
    if size == 0:
        return numpy.full_like(points, 0.5)
    result: Points = (points - low) / size
    return result
