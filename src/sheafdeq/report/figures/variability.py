"""Training variability: validation and test curves of one configuration from several seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from sheafdeq.printable import mathtext
from sheafdeq.records import canonical_json
from sheafdeq.report.figures.picture import Drawing, file_stem, legend_below, letter, plottable
from sheafdeq.report.figures.source import Source
from sheafdeq.report.style import SEED_LOOKS
from sheafdeq.report.summary import options_text

__all__ = [
    "training_variability",
]


def training_variability(sources: Sequence[Source]) -> list[Drawing]:
    """Validation and test curves of every configuration that was trained from at least two seeds
    with test curves."""
    groups: dict[tuple[str, str, bytes], list[Source]] = defaultdict(list)
    for source in sources:
        if (
            source.run is not None
            and source.run.curves.get("test")
            and len(source.run.curves["test"]) > 1
        ):
            record = source.run
            groups[
                (record.task.title, record.model.name, canonical_json(record.model.options))
            ].append(source)
    drawings, used = [], set()
    for (title, name, _), group in sorted(groups.items()):
        if len({source.run.seed for source in group if source.run is not None}) < 2:
            continue
        stem = file_stem("training", f"{title} {name}")
        while stem in used:
            stem += "-b"
        used.add(stem)
        drawings.append(_training(group, title, stem))
    return drawings


def _training(group: Sequence[Source], title: str, stem: str) -> Drawing:
    import matplotlib.pyplot as plt

    records = sorted(
        (source.run for source in group if source.run is not None), key=lambda record: record.seed
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(7.2, 3.0), sharex=True, sharey=True)
    for i, record in enumerate(records):
        look = SEED_LOOKS[i % len(SEED_LOOKS)]
        validation = plottable(record.curves["validation"])
        epochs, test = zip(*record.curves["test"], strict=True)
        text = f"seed {record.seed}"
        left.plot(
            range(len(validation)),
            validation,
            label=text,
            **look.options(points=len(validation)),
            linewidth=1.0,
        )
        right.plot(
            epochs, plottable(test), label=text, **look.options(points=len(epochs)), linewidth=1.0
        )
        for axis in (left, right):
            axis.axvline(record.best.epoch, color=look.colour, linestyle=(0, (4, 3)), linewidth=0.8)
    score = records[0].task.score
    left.set_ylabel(f"validation {mathtext(score)}")
    right.set_ylabel(f"test {mathtext(score)}")
    for axis in (left, right):
        axis.set_xlabel("epoch")
        axis.tick_params(labelleft=True)
    letter([left, right])
    legend_below(figure, left, columns=6)
    named = options_text(records[0].config["model"]["options"])
    title = f"{records[0].model.title}{f' ({named})' if named else ''}, {title}"
    caption = (
        f"Training variability, {title}: (a) validation and (b) test scores while training from "
        f"{len(records)} seeds. Vertical dashed lines mark the epoch of the best validation "
        "score, which is the checkpoint that "
        "is used."
    )
    return Drawing(stem, figure, caption, tuple(group))
