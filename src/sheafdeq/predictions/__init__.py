"""Proved predictions: which labels hold at the exact equilibrium (``docs/predictions.md``)."""

from __future__ import annotations

from sheafdeq.predictions.attack import Attack, attack
from sheafdeq.predictions.pictures import draw_curve, draw_graph, prediction_figures
from sheafdeq.predictions.predictions import Predictions, Scores
from sheafdeq.predictions.prove import certify_predictions, refined

__all__ = [
    "Attack",
    "Predictions",
    "Scores",
    "attack",
    "certify_predictions",
    "draw_curve",
    "draw_graph",
    "prediction_figures",
    "refined",
]
