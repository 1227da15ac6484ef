"""Judging a finished run: on the task it was trained on, on another one, or on a user's own
graph."""

from sheafdeq.evaluation.evaluate import EVALUATION_FILE, Checkpoint, evaluate_checkpoint, load
from sheafdeq.evaluation.predict import Prediction, predict
from sheafdeq.evaluation.rest import Rest, rest_of

__all__ = [
    "EVALUATION_FILE",
    "Checkpoint",
    "Prediction",
    "Rest",
    "evaluate_checkpoint",
    "load",
    "predict",
    "rest_of",
]
