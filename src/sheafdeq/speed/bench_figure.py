"""bench_time.png and bench_scale.png."""

from __future__ import annotations

from pathlib import Path
from typing import Any

__all__ = [
    "draw_bench",
]


def draw_bench(result: dict[str, Any], folder: Path) -> None:
    """bench_time.png and bench_scale.png."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = sorted(result["rows"], key=lambda row: row["seconds"])
    figure, (left, right) = pyplot.subplots(1, 2, figsize=(10, 3.2), layout="constrained")
    names = {
        "pyg": "PyG message passing",
        "compiled": "PyG, torch.compile",
        "reference": "PyTorch, no kernel",
        "native": "fused kernel",
    }
    labels = [names.get(row["name"], row["name"].replace("native", "fused kernel")) for row in rows]
    bars = left.barh(labels, [row["seconds"] for row in rows], color="#3b6ea5")
    left.bar_label(bars, [f"{row['seconds']:.2f} s" for row in rows], padding=3)
    left.set_xscale("log")
    left.set_xlim(
        0.3 * min(row["seconds"] for row in rows), 4 * max(row["seconds"] for row in rows)
    )
    left.set_xlabel("seconds, 20 steps forward and backward")
    measured = [
        (label, row) for label, row in zip(labels, rows, strict=True) if row["memory_bytes"]
    ]
    bars = right.barh(
        [label for label, _ in measured],
        [row["memory_bytes"] / 2**20 for _, row in measured],
        color="#a5653b",
    )
    right.bar_label(
        bars, [f"{row['memory_bytes'] / 2**20:,.0f} MiB" for _, row in measured], padding=3
    )
    right.set_xscale("log")
    held = [row["memory_bytes"] / 2**20 for _, row in measured]
    right.set_xlim(0.3 * min(held), 6 * max(held))
    right.set_xlabel("peak memory of the pass, MiB")
    _save(figure, folder / "bench_time.png")
    pyplot.close(figure)
    if result["scales"]:
        figure, axes = pyplot.subplots(figsize=(5, 3.2), layout="constrained")
        axes.plot(
            [r["edges"] for r in result["scales"]],
            [r["nanoseconds_per_edge"] for r in result["scales"]],
            "o-",
            color="#3b6ea5",
        )
        axes.set_xscale("log")
        axes.set_ylim(0, 1.2 * max(r["nanoseconds_per_edge"] for r in result["scales"]))
        axes.set_xlabel("stored edges")
        axes.set_ylabel("ns per edge and step")
        _save(figure, folder / "bench_scale.png")
        pyplot.close(figure)


def _save(figure: Any, path: Path) -> None:
    """Whole or not at all."""
    import io

    from sheafdeq.records import write_bytes

    drawn = io.BytesIO()
    figure.savefig(drawn, format="png", dpi=150)
    write_bytes(path, drawn.getvalue())
