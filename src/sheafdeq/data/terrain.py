"""MNIST Terrain: ten agents on one image of a 0 or a 1 each see one pixel and must agree which
digit it is.

Every zero and one of MNIST (14,780 images, training file first) becomes a graph of ``pixels``
nodes: pixel positions drawn without replacement, feature (value, row, column), each scaled to [0,
1]; the label of every node is the digit. The paper says "communication determined by pixel
proximity" and no more: here each pixel is joined to its ``k`` nearest (union-symmetrised), and
while a graph is in several pieces the shortest link between the first piece and the rest is added;
``edges="radius"`` joins pixels at most ``radius`` pixels apart instead (and leaves pieces apart).
Masks are over nodes, 60/20/20, as the paper's split table has them: nearly every test node then
shares its image, and so its label, with training nodes, and a model that can tell images apart
need only remember. ``split_by="image"`` keeps whole images apart.

Which pixels an agent may stand on is not printed either. Here it is any of the 28 x 28;
``margin=4`` keeps agents off the four outermost rows and columns, where MNIST has next to nothing
(``docs/results.md`` says which of the two agrees with the paper's numbers).

``mnist-terrain-standin`` draws rings and bars instead of reading MNIST: same shapes, no files, not
comparable.
"""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import numpy as np
import torch

from sheafdeq.data.coordinates import batched_neighbours
from sheafdeq.data.files import read_files
from sheafdeq.data.graph import Graph
from sheafdeq.data.masks import split_masks
from sheafdeq.data.objective import Classification
from sheafdeq.data.task import Dimensions, Split, Task, with_changed
from sheafdeq.errors import DataError, InputError

__all__ = ["mnist_terrain", "mnist_terrain_standin", "read_idx"]

_FILES = [
    f"mnist/raw/{part}-{kind}-ubyte.gz"
    for part in ("train", "t10k")
    for kind in ("images-idx3", "labels-idx1")
]
_SIDE = 28
_LARGEST_MARGIN = 12
"""At which 4 x 4 pixels are left."""


def mnist_terrain(
    *,
    images: int | None = None,
    pixels: int = 10,
    edges: str = "neighbours",
    k: int = 3,
    radius: float = 8.0,
    margin: int = 0,
    seed: int = 42,
    split_by: str = "node",
    root: Any = None,
    download: bool = False,
) -> Task:
    """All zeros and ones, or the first ``images`` of them."""
    contents = read_files(_FILES, root=root, download=download)
    pictures, digits = [], []
    for image_file, label_file in (_FILES[:2], _FILES[2:]):
        values, labels = (
            read_idx(contents[image_file], image_file),
            read_idx(contents[label_file], label_file),
        )
        chosen = labels <= 1
        pictures.append(values[chosen])
        digits.append(labels[chosen])
    options = dict(images=images, pixels=pixels, edges=edges, k=k, radius=radius, seed=seed)
    licence = "none stated (MNIST database, Y. LeCun, C. Cortes, C. Burges)"
    picture, digit = np.concatenate(pictures)[:images], np.concatenate(digits)[:images]
    return _terrain("mnist-terrain", picture, digit, options, margin, split_by, licence, ())


def mnist_terrain_standin(
    *,
    images: int = 60,
    pixels: int = 10,
    edges: str = "neighbours",
    k: int = 3,
    radius: float = 8.0,
    margin: int = 0,
    seed: int = 42,
    split_by: str = "node",
) -> Task:
    """Synthetic rings (0) and bars (1) in place of MNIST, to run without files."""
    if images < 1:
        raise InputError(f"images must be at least 1, got {images}")
    random = np.random.default_rng(seed)
    digit = random.integers(0, 2, size=images)
    centre = 13.5 + random.uniform(-3, 3, size=(images, 2, 1, 1))
    width = random.uniform(4, 7, size=(images, 1, 1))
    row, column = np.mgrid[0:_SIDE, 0:_SIDE]
    across = (column - centre[:, 1]) / width
    along = (row - centre[:, 0]) / 9.0
    ring = np.exp(-12 * (np.hypot(across, along) - 1) ** 2)
    bar = np.exp(-12 * across**2) * (np.abs(along) < 1)
    picture = (255 * np.where(digit[:, None, None] == 0, ring, bar)).astype(np.uint8)
    options = dict(images=images, pixels=pixels, edges=edges, k=k, radius=radius, seed=seed)
    remark = (
        "a synthetic stand-in of the shape of MNIST Terrain: its scores say nothing about MNIST"
    )
    return _terrain(
        "mnist-terrain-standin",
        picture,
        digit,
        options,
        margin,
        split_by,
        "none needed (generated)",
        (remark,),
    )


def _terrain(
    name: str,
    pictures: np.ndarray,
    digits: np.ndarray,
    options: dict[str, Any],
    margin: int,
    split_by: str,
    licence: str,
    remarks: tuple[str, ...],
) -> Task:
    pixels, k = options["pixels"], options["k"]
    if not 0 <= margin <= _LARGEST_MARGIN:
        raise InputError(f"margin must be 0 to {_LARGEST_MARGIN}, got {margin!r}")
    allowed = _places(margin)
    if not 2 <= pixels <= len(allowed) or not 1 <= k < pixels:
        raise InputError(
            f"terrain needs 2 to {len(allowed)} pixels and k from 1 to pixels - 1, "
            f"got {pixels} and {k}"
        )
    if options["edges"] not in ("neighbours", "radius"):
        raise InputError(f"edges must be 'neighbours' or 'radius', got {options['edges']!r}")
    count = len(digits)
    draws = torch.rand(
        count, len(allowed), generator=torch.Generator().manual_seed(options["seed"])
    )
    place = allowed[torch.argsort(draws, dim=1, stable=True)[:, :pixels].numpy()]
    position = np.stack([place // _SIDE, place % _SIDE], axis=-1).astype(np.float64)
    value = np.take_along_axis(pictures.reshape(count, -1), place, axis=1) / 255.0
    x = np.concatenate([value[..., None], position / (_SIDE - 1)], axis=-1).astype(np.float32)
    if options["edges"] == "radius":
        distance = np.sqrt(((position[:, :, None] - position[:, None]) ** 2).sum(axis=-1))
        adjacency = (distance <= options["radius"]) & ~np.eye(pixels, dtype=bool)
    else:
        adjacency = _joined(*batched_neighbours(position, k))
    graph_of_edge, target_node, source_node = np.nonzero(adjacency)
    offset = graph_of_edge * pixels
    graph = Graph.build(
        torch.from_numpy(x.reshape(-1, 3)),
        torch.from_numpy(np.stack([offset + source_node, offset + target_node])),
        batch=torch.arange(count).repeat_interleave(pixels),
    )
    label = torch.from_numpy(np.repeat(digits.astype(np.int64), pixels))
    train, validation, test = (
        Split(graph, label, mask)
        for mask in split_masks(graph, options["seed"], split_by, whole="image")
    )
    return Task(
        name=name,
        train=train,
        validation=validation,
        test=test,
        objective=Classification(2),
        dimensions=Dimensions(16, 10, 2, 8),
        patience=500,
        out_channels=2,
        licence=licence,
        options=with_changed(options, margin=(margin, 0), split_by=(split_by, "node")),
        remarks=(
            *remarks,
            "the paper does not print which pixels are near, or may be drawn; see the options "
            "edges, k, radius and margin",
        ),
    )


def _places(margin: int) -> np.ndarray:
    """The numbers of the pixels at least ``margin`` away from the border, row by row."""
    number = np.arange(_SIDE * _SIDE).reshape(_SIDE, _SIDE)
    return number[margin : _SIDE - margin, margin : _SIDE - margin].ravel()


def _joined(adjacency: np.ndarray, distance: np.ndarray) -> np.ndarray:
    """Add shortest links until every one of the (g, n, n) graphs is connected; ties go to the lower
    node number."""
    n = adjacency.shape[1]
    adjacency = adjacency.copy()
    while True:
        reached = np.zeros(adjacency.shape[:2], dtype=bool)
        reached[:, 0] = True
        for _ in range(n - 1):
            reached |= (adjacency & reached[:, None, :]).any(axis=2)
        apart = np.flatnonzero(~reached.all(axis=1))
        if len(apart) == 0:
            return adjacency
        crossing = reached[apart][:, :, None] & ~reached[apart][:, None, :]
        link = np.where(crossing, distance[apart], np.inf).reshape(len(apart), -1).argmin(axis=1)
        adjacency[apart, link // n, link % n] = True
        adjacency[apart, link % n, link // n] = True


def read_idx(content: bytes, origin: str = "the IDX file") -> np.ndarray:
    """The uint8 array of a gzipped IDX file: bytes 0 0 8 rank, then big-endian sizes, then the
    values."""
    try:
        raw = gzip.decompress(content)
    except (OSError, EOFError, zlib.error) as error:
        raise DataError(f"{origin} is not a complete gzip file: {error}") from error
    if len(raw) < 4 or raw[:3] != b"\x00\x00\x08" or len(raw) < 4 + 4 * raw[3]:
        raise DataError(f"{origin} is not an IDX file of bytes")
    shape = tuple(int(size) for size in np.frombuffer(raw, dtype=">u4", count=raw[3], offset=4))
    values = np.frombuffer(raw, dtype=np.uint8, offset=4 + 4 * raw[3])
    expected = 1
    for size in shape:
        expected *= size
    if len(values) != expected:
        raise DataError(f"{origin} holds {len(values)} values where its header promises {expected}")
    return values.reshape(shape)
