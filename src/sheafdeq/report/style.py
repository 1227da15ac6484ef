"""One look for all figures: the same colour, line and marker for the same model everywhere.

Colours are the Okabe-Ito set, which colour-blind readers can tell apart; every model also has its
own line style and marker, so the figures read in greyscale.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

__all__ = ["SEED_LOOKS", "Look", "look_of", "look_of_model", "style"]


@dataclass(frozen=True)
class Look:
    """How one model is drawn."""

    colour: str
    line: Any  # a matplotlib line style
    marker: str

    def options(self, *, points: int = 1, every: int | None = None) -> dict[str, Any]:
        """Keyword arguments of ``Axes.plot``, with about eight markers on a curve of ``points``
        points."""
        return {
            "color": self.colour,
            "linestyle": self.line,
            "marker": self.marker,
            "markevery": every or max(1, points // 8),
            "markersize": 4,
        }


_DENSE_DOTS = (0, (1, 1))
_LONG_DASH = (0, (7, 2))
_DASH_DOT_DOT = (0, (5, 1.5, 1, 1.5, 1, 1.5))

_LOOKS = {
    "sheafdeq": Look("#0072B2", "-", "o"),
    "sheafdeq-no-norm": Look("#D55E00", "--", "s"),
    "loop-transformer": Look("#009E73", "-.", "^"),
    "sheaf-cascade": Look("#CC79A7", _LONG_DASH, "D"),
    "strong-sheaf": Look("#882255", _DASH_DOT_DOT, "P"),
    "graph-attn-deq": Look("#000000", ":", "v"),
    "ignn": Look("#E69F00", _LONG_DASH, "X"),
    "eignn": Look("#999999", "--", "<"),
    "appnp": Look("#56B4E9", "-.", ">"),
    "appnp-tanh": Look("#56B4E9", _DENSE_DOTS, "*"),
    "energygnn": Look("#8C510A", ":", "h"),
}
_OTHER = [
    Look("#555555", line, marker)
    for line, marker in (("-", "d"), ("--", "p"), ("-.", "*"), (":", "H"))
]

SEED_LOOKS = [
    Look("#0072B2", "-", "o"),
    Look("#D55E00", "--", "s"),
    Look("#009E73", "-.", "^"),
    Look("#CC79A7", _LONG_DASH, "D"),
    Look("#000000", ":", "v"),
    Look("#E69F00", _DASH_DOT_DOT, "X"),
]
"""For curves that differ by seed and not by model."""


def look_of_model(name: str) -> Look:
    """The look of a registered model; unknown names share a few greys, the same name always the
    same one."""
    if name in _LOOKS:
        return _LOOKS[name]
    return _OTHER[sum(name.encode()) % len(_OTHER)]


def look_of(name: str, variant: int = 0) -> Look:
    """The look of the ``variant``-th curve of one model: its colour, with another line and marker
    from the second on."""
    look = look_of_model(name)
    if variant == 0:
        return look
    other = _OTHER[(variant - 1) % len(_OTHER)]
    return Look(look.colour, other.line if other.line != look.line else _DENSE_DOTS, other.marker)


def style() -> AbstractContextManager[None]:
    """Settings for all figures: sizes for print, text kept as text, the same bytes every time."""
    import matplotlib
    from matplotlib import rc_context

    matplotlib.use("Agg")
    return rc_context(
        {
            "font.size": 9,
            "axes.titlesize": 9,
            "axes.labelsize": 9,
            "legend.fontsize": 8,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.alpha": 0.3,
            "grid.linewidth": 0.5,
            "lines.linewidth": 1.4,
            "figure.dpi": 100,
            "savefig.dpi": 200,
            "figure.constrained_layout.use": True,
            "svg.hashsalt": "sheafdeq",
            "svg.fonttype": "none",
            "pdf.fonttype": 42,
        }
    )
