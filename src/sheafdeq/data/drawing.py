"""Draw a task so that a person can judge it: the graph coloured by label, its degrees, and how
classes mix.

One large graph with classes is drawn with its classes as separate clouds, so that edges within a
class stay inside a cloud and edges between classes cross the open space. Small graphs are drawn
side by side, laid out so that drawn distances follow distances in the graph (stress majorisation).
Colours are the Okabe-Ito set for classes and cividis for numbers; both can be told apart with
colour-blind eyes.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from scipy import sparse
from scipy.sparse.csgraph import shortest_path

from sheafdeq.data.graph import Graph
from sheafdeq.data.objective import Classification, GraphClassification
from sheafdeq.data.task import Split, Task, degree_figures
from sheafdeq.errors import UsageError

__all__ = ["draw_task"]

_CLASS_COLOURS = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#CC79A7",
    "#56B4E9",
    "#D55E00",
    "#F0E442",
    "#000000",
)
_INSIDE, _ACROSS = "#999999", "#D55E00"
_MOST_EDGES = 4000
_SMALL, _MANY = 60, 12  # nodes of a graph that is drawn whole, graphs drawn side by side


def draw_task(task: Task, path: str | os.PathLike[str]) -> None:
    """Write the picture of ``task`` (its test split) to ``path``; the ending chooses the format."""
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError("drawing needs matplotlib: pip install 'sheafdeq[figures]'") from error
    split = task.test
    figure = Figure(figsize=(13, 7.5), layout="constrained")
    grid = figure.add_gridspec(3, 2, width_ratios=(2.3, 1), height_ratios=(1, 1, 0.9))
    picture = figure.add_subplot(grid[:, 0])
    picture.set_aspect("equal")
    picture.axis("off")
    if split.graph.num_graphs > 3 or split.graph.num_nodes <= _SMALL:
        _draw_small(picture, task, split)
    else:
        _draw_classes(picture, task, split)
    _draw_degrees(figure.add_subplot(grid[0, 1]), task)
    _draw_targets(figure.add_subplot(grid[1, 1]), task)
    _write_figures(figure.add_subplot(grid[2, 1]), task)
    figure.suptitle(f"{task.title}: {task.kind}", fontsize=15)
    try:
        figure.savefig(path, dpi=110)
    except ValueError as error:
        raise UsageError(f"cannot write {path}: {error}") from error


# ---------------------------------------------------------------------------------------------- the
# graph


def _draw_classes(axes: Any, task: Task, split: Split) -> None:
    """The first graph of the split with its classes as clouds."""
    graph = split.graph
    members = np.flatnonzero(graph.graph_ids.numpy() == 0)
    labels = np.zeros(len(members), dtype=np.int64)
    names = ["node"]
    if task.kind == "node classification":
        labels = split.target.numpy()[members]
        names = [f"class {c}" for c in range(task.out_channels)]
        if (labels < 0).any():
            names.append("not known")
            labels = np.where(labels < 0, task.out_channels, labels)
    source, target = _edges_within(graph, members)
    classes = len(names)
    sizes = np.bincount(labels, minlength=classes)
    features = graph.x.numpy()[members]
    place = np.empty((len(members), 2))
    for c in range(classes):
        angle = np.pi / 2 + 2 * np.pi * c / classes
        if sizes[c] == 0:
            continue
        radius = np.sqrt(sizes[c] / sizes.max()) * min(1.0, 1.9 * np.sin(np.pi / max(classes, 2)))
        if features.shape[1] == 2:  # the features are a place already
            own = features[labels == c] - features[labels == c].mean(axis=0)
            own = own / max(np.abs(own).max(), 1e-9) * radius
        else:
            rank = np.arange(sizes[c]) + 0.5
            turn = np.pi * (3 - np.sqrt(5)) * rank
            own = (
                radius
                * np.sqrt(rank / sizes[c])[:, None]
                * np.column_stack([np.cos(turn), np.sin(turn)])
            )
        place[labels == c] = 1.75 * np.array([np.cos(angle), np.sin(angle)]) * (classes > 1) + own
    once = source <= target
    source, target = source[once], target[once]
    shown = np.random.default_rng(0).permutation(len(source))[:_MOST_EDGES]
    source, target = source[shown], target[shown]
    across = labels[source] != labels[target]
    for chosen, colour, text in (
        (across, _ACROSS, "between classes"),
        (~across, "#333333", "within a class"),
    ):
        _lines(
            axes, place, source[chosen], target[chosen], colour, 0.35, f"edge {text}", alpha=0.35
        )
    for c in range(classes):
        own = place[labels == c]
        colour = _CLASS_COLOURS[c % len(_CLASS_COLOURS)]
        size = np.clip(9000 / len(members), 2, 30)
        axes.scatter(
            own[:, 0], own[:, 1], s=size, color=colour, label=names[c], zorder=3, linewidths=0
        )
    note = (
        f"{len(shown):,} of {int(once.sum()):,} edges drawn"
        if int(once.sum()) > len(shown)
        else "all edges drawn"
    )
    which = "test graph 1, " if split.graph.num_graphs > 1 else ""
    axes.set_title(f"{which}{len(members):,} nodes by class, {note}", fontsize=11)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.5, 0.0),
        ncols=5,
        fontsize=9,
        markerscale=2,
        frameon=False,
    )


def _draw_small(axes: Any, task: Task, split: Split) -> None:
    """Up to twelve graphs side by side, coloured by class or by target."""
    graph = split.graph
    ids = graph.graph_ids.numpy()
    sizes = np.bincount(ids, minlength=graph.num_graphs)
    candidates = np.flatnonzero(sizes > 0)
    spread = np.linspace(0, len(candidates) - 1, min(_MANY, len(candidates))).round().astype(int)
    chosen = candidates[spread]
    columns = int(np.ceil(np.sqrt(len(chosen))))
    values, colour_map = _node_values(task, split)
    for slot, number in enumerate(chosen):
        members = np.flatnonzero(ids == number)
        source, target = _edges_within(graph, members)
        place = _layout(task, graph, members, source, target)
        place = place - (place.max(axis=0) + place.min(axis=0)) / 2
        place = place / max(np.abs(place).max(), 1e-9) * 0.42
        place += (slot % columns, -(slot // columns))
        once = source < target
        _lines(axes, place, source[once], target[once], _INSIDE, 0.9)
        drawn = axes.scatter(
            place[:, 0],
            place[:, 1],
            c=values[members],
            s=np.clip(900 / len(members), 12, 60),
            zorder=3,
            **colour_map,
        )
        axes.text(
            slot % columns,
            -(slot // columns) + 0.48,
            f"graph {number}",
            ha="center",
            fontsize=8,
            color="#444444",
        )
    axes.set_title(f"{len(chosen)} of {graph.num_graphs:,} graphs", fontsize=11)
    if isinstance(task.objective, Classification):
        for c in range(task.out_channels):
            axes.scatter([], [], color=_CLASS_COLOURS[c % len(_CLASS_COLOURS)], label=f"class {c}")
        axes.legend(
            loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=5, fontsize=9, frameon=False
        )
    elif "norm" in colour_map:
        axes.figure.colorbar(drawn, ax=axes, shrink=0.6, label=_value_name(task))


def _node_values(task: Task, split: Split) -> tuple[np.ndarray, dict[str, Any]]:
    from matplotlib.colors import ListedColormap, Normalize

    graph = split.graph
    if isinstance(task.objective, Classification):
        labels = split.target.numpy()
        if isinstance(task.objective, GraphClassification):
            labels = labels[graph.graph_ids.numpy()]
        return labels % len(_CLASS_COLOURS), {
            "cmap": ListedColormap(_CLASS_COLOURS),
            "vmin": 0,
            "vmax": 7,
        }
    per_node = split.target.shape[0] == graph.num_nodes
    values = split.target[:, 0].numpy() * task.output_scale if per_node else graph.degree.numpy()
    return values, {"cmap": "cividis", "norm": Normalize(values.min(), values.max())}


def _value_name(task: Task) -> str:
    return "target" if task.kind == "node regression" else "degree"


def _layout(
    task: Task, graph: Graph, members: np.ndarray, source: np.ndarray, target: np.ndarray
) -> np.ndarray:
    """Places (m, 2) of the members of one small graph."""
    if task.name.startswith("mnist-terrain"):
        features = graph.x.numpy()[members]
        return np.column_stack([features[:, 2], -features[:, 1]])
    count = len(members)
    if count == 1:
        return np.zeros((1, 2))
    # a chain: wind it, or it is only a line
    if task.kind == "node regression" and len(source) == 2 * (count - 1):
        step = np.arange(count)
        per_row = int(np.ceil(np.sqrt(count)))
        row, column = step // per_row, step % per_row
        return np.column_stack([np.where(row % 2 == 0, column, per_row - 1 - column), -row]).astype(
            float
        )
    weights = np.ones(len(source))
    if task.kind == "localisation" and graph.edge_attr is not None:
        keep = np.isin(graph.target.numpy(), members)
        weights = graph.edge_attr.numpy()[keep, 0].astype(float)
    return _stress_layout(count, source, target, weights)


def _stress_layout(
    count: int, source: np.ndarray, target: np.ndarray, weights: np.ndarray
) -> np.ndarray:
    """Stress majorisation: minimise the sum over pairs of (drawn - graph distance)^2 / (graph
    distance)^2."""
    lengths = sparse.csr_matrix((weights, (source, target)), shape=(count, count))
    wanted = shortest_path(lengths, directed=False)
    finite = wanted[np.isfinite(wanted)]
    wanted[~np.isfinite(wanted)] = 1.3 * finite.max() + 1e-9
    np.fill_diagonal(wanted, 1.0)
    weight = 1 / np.maximum(wanted, 1e-9) ** 2
    np.fill_diagonal(weight, 0.0)
    laplacian = np.diag(weight.sum(axis=1)) - weight
    inverse = np.linalg.pinv(laplacian)
    place = np.random.default_rng(1).normal(size=(count, 2))
    centred = wanted**2 - np.eye(count)
    centred = -0.5 * (
        centred - centred.mean(axis=0) - centred.mean(axis=1)[:, None] + centred.mean()
    )
    values, vectors = np.linalg.eigh(centred)
    place = vectors[:, -2:] * np.sqrt(np.maximum(values[-2:], 1e-12)) + 1e-6 * place
    for _ in range(150):
        difference = place[:, None] - place[None]
        drawn = np.maximum(np.sqrt((difference**2).sum(axis=-1)), 1e-9)
        ratio = weight * wanted / drawn
        place = inverse @ ((np.diag(ratio.sum(axis=1)) - ratio) @ place)
    result: np.ndarray = place
    return result


def _edges_within(graph: Graph, members: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Stored edges among consecutive ``members``, renumbered from zero."""
    first, last = int(members[0]), int(members[-1])
    start, end = int(graph.pointer[first]), int(graph.pointer[last + 1])
    return graph.source[start:end].numpy() - first, graph.target[start:end].numpy() - first


def _lines(
    axes: Any, place: np.ndarray, source: np.ndarray, target: np.ndarray, colour: str, width: float,
    label: str | None = None, alpha: float = 0.8,
) -> None:  # fmt: skip
    from matplotlib.collections import LineCollection

    segments = np.stack([place[source], place[target]], axis=1)
    axes.add_collection(
        LineCollection(list(segments), colors=colour, linewidths=width, alpha=alpha, zorder=1)
    )
    if label is not None:
        axes.plot([], [], color=colour, linewidth=1.5, label=label)


# ---------------------------------------------------------------------------------------------- the
# figures


def _draw_degrees(axes: Any, task: Task) -> None:
    degree = np.concatenate([graph.pointer.diff().numpy() for graph in task.graphs])
    mean = degree.mean()
    if degree.max() <= 60:
        counts = np.bincount(degree)
        axes.bar(np.arange(len(counts)), counts, color="#0072B2", width=0.85)
        axes.xaxis.get_major_locator().set_params(integer=True)
    else:
        axes.hist(degree[degree > 0], bins=np.geomspace(1, degree.max() + 1, 40), color="#0072B2")
        axes.set_xscale("log")
        axes.set_yscale("log")
    axes.axvline(max(mean, 1e-9), color="#D55E00", linewidth=1.5, label=f"mean {mean:.2f}")
    axes.set(xlabel="degree (incoming stored edges)", ylabel="nodes")
    axes.legend(fontsize=9)


def _draw_targets(axes: Any, task: Task) -> None:
    if isinstance(task.objective, Classification) and not isinstance(
        task.objective, GraphClassification
    ):
        classes = task.out_channels
        mixing = np.zeros((classes, classes))
        for graph in task.graphs:
            target = next(
                split.target for split in task.splits.values() if split.graph is graph
            ).numpy()
            ends = np.stack([target[graph.source.numpy()], target[graph.target.numpy()]])
            np.add.at(mixing, tuple(ends[:, (ends >= 0).all(axis=0)]), 1)
        share = mixing / max(mixing.sum(), 1)
        axes.imshow(share, cmap="cividis", vmin=0, vmax=share.max() or 1)
        for row in range(classes):
            for column in range(classes):
                colour = "black" if share[row, column] > 0.6 * share.max() else "white"
                text = f"{100 * share[row, column]:.1f}"
                axes.text(
                    column,
                    row,
                    text,
                    ha="center",
                    va="center",
                    color=colour,
                    fontsize=9 if classes < 5 else 7,
                )
        axes.set(
            xlabel="class of target",
            ylabel="class of source",
            xticks=range(classes),
            yticks=range(classes),
        )
        axes.set_title("share of stored edges (%)", fontsize=10)
        return
    values = np.concatenate(
        [split.scored_target.numpy().reshape(-1) for split in task.splits.values()]
    )
    if isinstance(task.objective, GraphClassification):
        counts = np.bincount(values)
        axes.bar(np.arange(len(counts)), counts, color="#009E73")
        axes.set(xlabel="class", ylabel="graphs", xticks=range(len(counts)))
    else:
        raw = values * task.output_scale
        whole = np.abs(raw - raw.round()).max() < 1e-3 and np.ptp(raw) < 200
        axes.hist(
            raw,
            bins=np.arange(raw.min().round(), raw.max() + 2) - 0.5 if whole else 40,
            color="#009E73",
        )
        name = "true edge length" if task.kind == "localisation" else "target (raw units)"
        axes.set(xlabel=name, ylabel="edges" if task.kind == "localisation" else "nodes")


def _write_figures(axes: Any, task: Task) -> None:
    axes.axis("off")
    degree = degree_figures(task.graphs)
    homophily = "none (no node classes)" if task.homophily is None else f"{task.homophily:.4f}"
    lines = [
        f"graphs       {sum(graph.num_graphs for graph in task.graphs):,}",
        f"nodes        {sum(graph.num_nodes for graph in task.graphs):,}",
        f"stored edges {sum(graph.num_edges for graph in task.graphs):,}",
        f"degree       {degree['minimum']} to {degree['maximum']}, mean {degree['mean']:.2f}",
        f"isolated     {degree['isolated']:,}",
        f"homophily    {homophily}",
        "scored       " + " / ".join(f"{split.size:,}" for split in task.splits.values()),
        "constant     "
        + ", ".join(f"{key} {value:.4f}" for key, value in task.constant_over_all.items()),
        f"digest       {task.digest[:16]}",
    ]
    axes.text(
        0, 1, "\n".join(lines), family="monospace", fontsize=10, va="top", transform=axes.transAxes
    )
