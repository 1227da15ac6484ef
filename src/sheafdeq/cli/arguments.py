"""The words of a command line: parsers that answer in one line, and typed values.

A wrong word is one line on standard error and exit code 2. Names that do not exist are answered
with the nearest ones.
"""

from __future__ import annotations

import argparse
import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from sheafdeq.errors import UsageError
from sheafdeq.options import SEED, suggestion
from sheafdeq.printable import printable

__all__ = [
    "FIGURE_ENDINGS",
    "Parser",
    "add_assignments",
    "model_name",
    "names_of",
    "output_file",
    "output_folder",
    "parse_assignments",
    "present_file",
    "present_folder",
    "real_number",
    "schedule_words",
    "seed_number",
    "share",
    "whole_number",
]


def _with_default(words: str, default: Any) -> str:
    if default is None or "default" in words:
        return words
    shown = f"default {default:g}" if isinstance(default, float) else f"default {default}"
    return f"{words} ({shown})" if words else shown


class _Options:
    """The kinds of options most commands have; help texts say the default."""

    add_argument: Callable[..., Any]

    def flag(self, name: str, words: str) -> None:
        """An option that is there or not."""
        self.add_argument(name, action="store_true", help=words)

    def value(
        self,
        name: str,
        kind: Callable[[str], Any],
        words: str,
        default: Any = None,
        *,
        metavar: str | None = None,
        known: Callable[[], Iterable[str]] | None = None,
    ) -> None:
        """An option with one value; ``kind`` reads it, the shell completes it with ``known``."""
        words = _with_default(words, default)
        action = self.add_argument(name, type=kind, default=default, metavar=metavar, help=words)
        if known is not None:
            action.completer = names_of(known)

    def named(self, name: str, words: str, known: Callable[[], Iterable[str]], **more: Any) -> None:
        """A word in its place that is one of the ``known`` ones, which the shell completes."""
        self.add_argument(name, metavar="NAME", help=words, **more).completer = names_of(known)

    def several(
        self, name: str, kind: Callable[[str], Any], words: str, default: Any = (), **more: Any
    ) -> None:
        """An option with values one after the other."""
        more.setdefault("nargs", "+")
        self.add_argument(name, type=kind, default=list(default), help=words, **more)

    def repeated(self, *names: str, words: str, metavar: str = "KEY=VALUE", **more: Any) -> None:
        """An option that may be given again and again."""
        self.add_argument(*names, action="append", default=[], metavar=metavar, help=words, **more)

    def folder(self, name: str, words: str, default: str | None = None) -> None:
        """A folder to write into."""
        self.value(name, output_folder, words, default, metavar="DIR")

    def ray_address(self) -> None:
        """``--ray-address``, which cluster to join."""
        words = "a Ray cluster that is running (default: one is started here)"
        self.value("--ray-address", str, words, metavar="HOST:PORT")

    def threads(self) -> None:
        """``--threads``, where they are not part of what is asked."""
        self.value("--threads", whole_number(1, 1024), "threads of torch (default: torch's own)")

    def choice(
        self, name: str, known: Iterable[str], words: str, default: str | None = None
    ) -> None:
        """An option with one of several values."""
        words = _with_default(words, default)
        self.add_argument(name, choices=known, default=default, help=words)


class OptionGroup(_Options, argparse._ArgumentGroup):
    """Options under a heading."""


class Parser(_Options, argparse.ArgumentParser):
    """An ``ArgumentParser`` whose complaints are one line with a suggestion."""

    def answers(self, run: Callable[[Any], int]) -> None:
        """``run`` carries the command out; with ``--json`` it prints one object."""
        self.flag("--json", "print one JSON object")
        self.set_defaults(run=run)

    def error(self, message: str) -> NoReturn:
        """One line, exit code 2."""
        text = " ".join(message.split())
        self.exit(2, f"{self.prog}: {printable(text)} (see {self.prog} --help)\n")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Words left over are refused where they were written, by the command that knows its own
        options."""
        namespace, rest = super().parse_known_args(args, namespace)
        if rest:
            known = [word for action in self._actions for word in action.option_strings]
            hints = [suggestion(word.split("=")[0], known) for word in rest if word.startswith("-")]
            self.error(f"unrecognized arguments: {' '.join(rest)}{''.join(hints[:1])}")
        return namespace, rest

    def add_argument_group(self, *words: Any, **options: Any) -> OptionGroup:
        """A group with the same kinds of options."""
        group = OptionGroup(self, *words, **options)
        self._action_groups.append(group)
        return group

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is not None and value not in action.choices:
            known = [str(choice) for choice in action.choices]
            raise argparse.ArgumentError(
                action,
                f"there is no {value!r}{suggestion(value, known)}. Choose from: {', '.join(known)}",
            )


# ---------------------------------------------------------------------- values


def whole_number(low: int = 1, high: int = 10**9) -> Callable[[str], int]:
    """A whole number within limits."""

    def convert(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = None
        if value is None or not low <= value <= high:
            raise argparse.ArgumentTypeError(
                f"must be a whole number from {low:,} to {high:,}, got {text[:40]!r}"
            )
        return value

    return convert


def real_number(
    low: float = -math.inf, high: float = math.inf, *, above: bool = False
) -> Callable[[str], float]:
    """A finite number within limits; ``above`` leaves the lower limit itself out."""

    def convert(text: str) -> float:
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or not low <= value <= high or (above and value == low):
            bounds = (
                [f"above {low:g}" if above else f"of at least {low:g}"] if low > -math.inf else []
            )
            bounds += [f"at most {high:g}"] if high < math.inf else []
            raise argparse.ArgumentTypeError(
                f"must be a finite number {', '.join(bounds)}".rstrip() + f", got {text[:40]!r}"
            )
        return value

    return convert


share = real_number(0.0, 1.0)
"""A share or a probability, 0 to 1."""


def seed_number(text: str) -> int:
    """What a random generator takes."""
    return whole_number(int(SEED.low), int(SEED.high))(text)


def model_name(text: str) -> str:
    """A model that is known, or one of the user's (``package.module:Class``)."""
    from sheafdeq.registry import MODELS
    from sheafdeq.user_models import installed_names

    known = [*MODELS, *installed_names()]
    if text not in known and ":" not in text:
        raise argparse.ArgumentTypeError(
            f"there is no model {text[:80]!r}{suggestion(text, known)}. Choose from: "
            f"{', '.join(known)}"
        )
    return text


def schedule_words(text: str) -> str:
    """``S,TAU``: an update window of at least one slot and a largest delay."""
    window, separator, delay = (part.strip() for part in text.partition(","))
    numbers = window.isdecimal() and delay.isdecimal() and len(text) <= 20
    if not separator or not numbers or int(window) < 1:
        raise argparse.ArgumentTypeError(
            f"a schedule is S,TAU such as 5,2, with S at least 1, got {text[:40]!r}"
        )
    return f"{window},{delay}"


def present_folder(text: str) -> str:
    """A folder that is there."""
    if not _is_folder(text):
        raise argparse.ArgumentTypeError(
            f"{text[:200]!r} is not a folder"
            + ("" if _exists(text) else ": there is nothing of that name")
        )
    return text


def present_file(text: str) -> str:
    """A file that is there."""
    if not _exists(text) or Path(text).is_dir():
        raise argparse.ArgumentTypeError(
            f"{text[:200]!r} is {'a folder, a file is needed' if _exists(text) else 'not there'}"
        )
    return text


def output_file(*endings: str) -> Callable[[str], str]:
    """A file to write, whose name has one of the endings (any, if none is named); its folder is
    there or can be made."""

    def convert(text: str) -> str:
        if endings and Path(text).suffix.lower() not in endings:
            raise argparse.ArgumentTypeError(
                f"{text[:200]!r} must end in {' or '.join(endings)}, which says what is written"
            )
        if _is_folder(text):
            raise argparse.ArgumentTypeError(f"{text[:200]!r} is a folder, a file is needed")
        output_folder(str(Path(text).parent))
        return text

    return convert


FIGURE_ENDINGS = (".png", ".svg", ".pdf")


def output_folder(text: str) -> str:
    """A folder to write into: there already, or one that can be made."""
    for place in [Path(text), *Path(text).parents]:
        if _exists(str(place)):
            if not _is_folder(str(place)):
                raise argparse.ArgumentTypeError(
                    f"{str(place)[:200]!r} is a file, a folder is needed"
                )
            break
    return text


def _exists(text: str) -> bool:
    try:
        os.stat(text)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        raise argparse.ArgumentTypeError(
            f"{text[:80]!r} cannot be used as a path ({reason})"
        ) from error
    return True


def _is_folder(text: str) -> bool:
    return _exists(text) and Path(text).is_dir()


# ---------------------------------------------------------------------- completion


def names_of(load: Callable[[], Iterable[str]]) -> Callable[..., Sequence[str]]:
    """A completer for the shell that loads its names only when a key is pressed."""

    def complete(prefix: str = "", **_: Any) -> Sequence[str]:
        return [name for name in load() if name.startswith(prefix)]

    return complete


def add_assignments(parser: Any, whose: str = "") -> None:
    """``--set``, ``--task-set`` and ``--training-set``, which mean the same wherever runs are
    made."""
    for flag, words in (
        ("--set", f"a model option {whose}".strip() + " (shift=1.3)"),
        ("--task-set", f"a task option {whose}".strip() + " (nodes=300)"),
        ("--training-set", f"a training field {whose}".strip() + " (graphs_per_update=1)"),
    ):
        parser.repeated(flag, words=f"{words}; may be repeated")


def parse_assignments(assignments: list[str]) -> dict[str, Any]:
    """``["shift=1.3", "name=x"]`` as a dictionary; values are JSON where they can be, else text."""
    values = {}
    for assignment in assignments:
        key, separator, text = assignment.partition("=")
        if not separator or not key:
            raise UsageError(f"expected KEY=VALUE, got {assignment!r}")
        try:
            values[key] = json.loads(text)
        except ValueError:
            values[key] = text
    return values
