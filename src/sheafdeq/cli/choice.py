"""Which runs of a folder a command is about: by level, seed, model, option, protocol and inputs."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import Parser, model_name, seed_number, whole_number
from sheafdeq.errors import UsageError

if TYPE_CHECKING:
    from sheafdeq.records import RunRecord

__all__ = ["PAPER_CHECKPOINTS", "PROTOCOL_WORDS", "Choice", "add_choice_options", "choice_of"]

PAPER_CHECKPOINTS = ("sheafdeq:43", "sheafdeq-no-norm:43", "loop-transformer:42")
"""The paper's checkpoints at level 7: the lowest seed of each model with 80 % validation accuracy
there."""

PROTOCOL_WORDS = "only runs trained so: paper, 'constant rate', 'recipe NAME'"


@dataclass(frozen=True)
class Choice:
    """What a run must be like; an empty field says nothing."""

    level: int | None = None
    seeds: tuple[int, ...] = ()
    models: tuple[str, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    protocol: str | None = None
    inputs: str | None = None  # none or difference
    checkpoints: tuple[tuple[str, int], ...] = ()

    @property
    def empty(self) -> bool:
        """Whether every run is accepted."""
        return self == Choice()

    def accepts(self, record: RunRecord) -> bool:
        """Whether a run is meant."""
        from sheafdeq.report.selection import protocol

        given = record.config["task"]["options"].get("edge_inputs", "none")
        return (
            (self.level is None or record.task.level == self.level)
            and (not self.seeds or record.seed in self.seeds)
            and (not self.models or record.model.name in self.models)
            and all(record.model.options.get(key) == value for key, value in self.options.items())
            and (self.protocol is None or protocol(record) == self.protocol)
            and (self.inputs is None or given == self.inputs)
            and (not self.checkpoints or (record.model.name, record.seed) in self.checkpoints)
        )

    def words(self) -> list[str]:
        """The choice as words of a command line."""
        words: list[str] = []
        if self.level is not None:
            words += ["--level", str(self.level)]
        for flag, values in (("--run-seeds", self.seeds), ("--models", self.models)):
            words += [flag, *map(str, values)] if values else []
        for key, value in self.options.items():
            words += ["--option", f"{key}={value}"]
        if self.protocol is not None:
            words += ["--protocol", self.protocol]
        if self.inputs is not None:
            words += ["--inputs", self.inputs]
        words += (
            ["--checkpoints", *(f"{model}:{seed}" for model, seed in self.checkpoints)]
            if self.checkpoints
            else []
        )
        return words


def add_choice_options(parser: Parser) -> None:
    """The options that make a :class:`Choice`."""
    group = parser.add_argument_group("which runs of a folder")
    group.value("--level", whole_number(0, 10), "only runs of this heterophily level")
    group.several("--run-seeds", seed_number, "only runs of these seeds", metavar="N")
    group.several("--models", model_name, "only these models", metavar="NAME")
    group.repeated("--option", words="only this model option (shift=1.2)")
    group.value("--protocol", str, PROTOCOL_WORDS, metavar="NAME")
    group.choice("--inputs", ["none", "difference"], "only runs of tasks with these edge inputs")
    group.several("--checkpoints", str, "just these, whatever their score", metavar="MODEL:SEED")


def choice_of(options: argparse.Namespace) -> Choice:
    """Read the options."""
    from sheafdeq.cli.arguments import parse_assignments

    pairs = []
    for text in options.checkpoints:
        model, colon, seed = text.rpartition(":")
        if not colon or not seed.isdecimal():
            raise UsageError(
                f"--checkpoints takes MODEL:SEED such as {PAPER_CHECKPOINTS[0]}, got {text!r}"
            )
        pairs.append((model, int(seed)))
    return Choice(
        options.level,
        tuple(options.run_seeds),
        tuple(options.models),
        parse_assignments(options.option),
        options.protocol,
        options.inputs,
        tuple(pairs),
    )
