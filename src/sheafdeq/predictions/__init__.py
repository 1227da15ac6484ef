"""Proved predictions: which labels hold at the exact equilibrium (``docs/predictions.md``)."""

from __future__ import annotations

from sheafdeq.certificates import Certificate, certify
from sheafdeq.predictions.attack import Attack, attack
from sheafdeq.predictions.largest_radius import LargestRadius, largest_radius
from sheafdeq.predictions.pictures import draw_curve, draw_graph, prediction_figures, redraw
from sheafdeq.predictions.predictions import Predictions, Scores
from sheafdeq.predictions.prove import Prover, certify_predictions, refined
from sheafdeq.predictions.schedules import LateMessages, drawn_schedules, under_schedules

__all__ = [
    "Attack",
    "Certificate",
    "LargestRadius",
    "LateMessages",
    "Predictions",
    "Prover",
    "Scores",
    "attack",
    "certify",
    "certify_predictions",
    "draw_curve",
    "draw_graph",
    "drawn_schedules",
    "largest_radius",
    "prediction_figures",
    "redraw",
    "refined",
    "under_schedules",
]
