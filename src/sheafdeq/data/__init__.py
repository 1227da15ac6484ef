"""Graphs and tasks: what a model is given, and how its answers are judged."""

from sheafdeq.data.catalogue import load_task, task_names
from sheafdeq.data.custom import own_task, task_from, task_from_csv, task_from_npz
from sheafdeq.data.graph import Graph
from sheafdeq.data.task import Dimensions, Split, Task

__all__ = [
    "Dimensions",
    "Graph",
    "Split",
    "Task",
    "load_task",
    "own_task",
    "task_from",
    "task_from_csv",
    "task_from_npz",
    "task_names",
]
