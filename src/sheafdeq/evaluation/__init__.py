"""Judging a finished run: on the task it was trained on, on another one, or on a user's own
graph."""

from sheafdeq.evaluation.evaluate import EVALUATION_FILE, Checkpoint, evaluate_checkpoint, load
from sheafdeq.evaluation.predict import Prediction, predict

__all__ = [
    "EVALUATION_FILE",
    "Checkpoint",
    "Prediction",
    "evaluate_checkpoint",
    "load",
    "predict",
]
