"""The schema of a sweep file.

A sweep is a TOML file:

    name = "mine"
    seeds = [42, 43]
    [training]                       # any TrainingConfig field, for all runs
    max_epochs = 300
    [[tasks]]
    name = "community"
    level = 7
    [[models]]
    name = "sheafdeq"                # without options: the configurations of the paper's full table
    [[models]]
    name = "ignn"
    options = [{ kappa = 0.9 }, { kappa = 0.95 }]
    [[models]]
    name = "sheafdeq"
    recipe = "reliable"              # a recipe of the package under everything above
    [[tasks]]                        # a graph of your own; paths start at the folder of this file
    files = { npz = "mine.npz" }     # or { nodes = "nodes.csv", edges = "edges.csv" }
    options = { seed = 0 }           # draws the masks, if the file has none
    [[exclude]]                      # pairs that are not run
    model = "eignn"
    task = "sums"

Runs are ordered by seed, then task, then model, so that every cell of a table has one seed before
any has two.

A sweep whose parts come one after the other lists them as groups instead, each with seeds, tasks,
models, training and exclude of its own; a run that an earlier group has already asked for is not
asked for again:

    name = "mine"
    [[groups]]
    title = "first this"
    seeds = [42]
    tasks = [{ name = "community", levels = [7, 10] }]
    models = [{ name = "ignn", options = [{}] }]
    training = { schedule = { kind = "wsd", warmup = 0.05 } }
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from sheafdeq.registry import model_spec
from sheafdeq.training.config import Option, TaskConfig, with_places

__all__ = ["Exclusion", "Group", "ModelGrid", "SweepFile", "TaskGrid", "tasks_placed"]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", protected_namespaces=())


class ModelGrid(_Frozen):
    """A model and the option sets to run; None means the registry's grid for the paper's full
    table.

    With ``recipe`` the recipe's training fields, task options and model options lie under the
    sweep's, and None means one run by the recipe.
    """

    name: str
    options: list[dict[str, Option]] | None = None
    recipe: str | None = None

    @property
    def option_sets(self) -> list[Mapping[str, Any]]:
        """One set of model options for each run of a task and seed."""
        if self.options is not None:
            return list(self.options)
        return [{}] if self.recipe else list(model_spec(self.name).grid)


class Exclusion(_Frozen):
    """A pair that is not run."""

    model: str
    task: str


class TaskGrid(TaskConfig):
    """A task, at one level and split or at several."""

    levels: list[int] | None = None
    splits: list[int | str] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> TaskGrid:
        for one in ("level", "split"):
            if getattr(self, one) is not None and getattr(self, f"{one}s") is not None:
                raise ValueError(f"give {one} or {one}s, not both")
        return self

    @property
    def tasks(self) -> list[TaskConfig]:
        """One task for each level and split."""
        values = self.model_dump(exclude={"level", "levels", "split", "splits"})
        return [
            TaskConfig(**values, level=level, split=split)
            for level in (self.levels if self.levels is not None else [self.level])
            for split in (self.splits if self.splits is not None else [self.split])
        ]


class Group(_Frozen):
    """One part of a sweep: every model on every task with every seed."""

    title: str = ""
    seeds: list[int]
    tasks: list[TaskGrid]
    models: list[ModelGrid]
    training: dict[str, Any] = Field(default_factory=dict)
    exclude: list[Exclusion] = Field(default_factory=list)


class SweepFile(_Frozen):
    """The schema of a sweep file: one group written at the top, or several under ``groups``."""

    name: str
    description: str = ""
    seeds: list[int] = Field(default_factory=list)
    tasks: list[TaskGrid] = Field(default_factory=list)
    models: list[ModelGrid] = Field(default_factory=list)
    training: dict[str, Any] = Field(default_factory=dict)
    exclude: list[Exclusion] = Field(default_factory=list)
    groups: list[Group] = Field(default_factory=list)

    @model_validator(mode="after")
    def _one_form(self) -> SweepFile:
        single = [key for key in ("seeds", "tasks", "models", "exclude") if getattr(self, key)]
        if self.groups and single:
            raise ValueError(f"{single[0]} stands beside groups: write it in the groups")
        missing = [key for key in ("seeds", "tasks", "models") if not getattr(self, key)]
        if not self.groups and missing:
            raise ValueError(f"{missing[0]} is missing (or groups)")
        return self

    @property
    def parts(self) -> list[Group]:
        """The groups, in order; ``training`` at the top holds for all of them."""
        if self.groups:
            return [
                group.model_copy(update={"training": {**self.training, **group.training}})
                for group in self.groups
            ]
        return [
            Group(
                seeds=self.seeds,
                tasks=self.tasks,
                models=self.models,
                training=self.training,
                exclude=self.exclude,
            )
        ]


def tasks_placed(values: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The values of a sweep file with the files of its tasks looked for in its folder."""
    found = dict(values)
    if isinstance(found.get("tasks"), list):
        found["tasks"] = [with_places(task, folder) for task in found["tasks"]]
    if isinstance(found.get("groups"), list):
        found["groups"] = [
            tasks_placed(group, folder) if isinstance(group, dict) else group
            for group in found["groups"]
        ]
    return found
