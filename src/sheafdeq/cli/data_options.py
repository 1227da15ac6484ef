"""Which data a command works on: options that mean the same wherever a task is loaded.

``--split`` is the number of a standard split, or its name (``public``). Where a command looks at
one part of a task (train, validation, test), ``--part`` names it; ``--split test`` means the same
there, as it always has.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sheafdeq.cli.arguments import Parser, output_folder, present_file, present_folder, seed_number
from sheafdeq.errors import UsageError

if TYPE_CHECKING:
    from sheafdeq.data import Task
    from sheafdeq.data.own_files import OwnData
    from sheafdeq.records import RunRecord
    from sheafdeq.training.config import TaskConfig

__all__ = ["PARTS", "DataChoice", "add_data_options", "chosen_root", "data_choice"]

PARTS = ("train", "validation", "test")
ROOT_VARIABLE = "SHEAFDEQ_DATA"


def split_name(text: str) -> int | str:
    """The number of a standard split, or its name."""
    if text.isdecimal() and len(text) < 10:
        return int(text)
    if not text.isidentifier():
        raise argparse.ArgumentTypeError(
            f"must be the number of a standard split (0, 1, ...) or its name (public), got "
            f"{text[:40]!r}"
        )
    return text


class _SplitOrPart(argparse.Action):
    """``--split 3``, ``--split public``: the task's; ``--split test``: the part, as ``--part``."""

    def __call__(
        self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option: Any = None
    ) -> None:
        namespace.__dict__["split" if values in self.const else "task_split"] = values


def add_data_options(
    parser: Parser, *, parts: Sequence[str] = (), mask_seed: Sequence[str] = ()
) -> None:
    """The options of :func:`data_choice`; with ``parts`` also what is looked at.

    ``mask_seed``: older names of ``--mask-seed`` that a command still takes.
    """
    group = parser.add_argument_group("data")
    which = "number of a standard split, or its name (public)"
    if parts:
        group.add_argument(
            "--part", dest="split", choices=parts, default="test", help="what to look at"
        )
        group.add_argument(
            "--split",
            dest="task_split",
            action=_SplitOrPart,
            const=tuple(parts),
            type=split_name,
            metavar="S",
            help=f"{which}; or a part, as --part",
        )
    else:
        group.add_argument("--split", dest="task_split", type=split_name, metavar="S", help=which)
    group.value(
        "--root",
        output_folder,
        "data folder (default: SHEAFDEQ_DATA, else ~/.cache/sheafdeq)",
        metavar="FOLDER",
    )
    group.flag("--download", "allow missing data files to be fetched and checked")
    group.value(
        "--npz",
        str,
        "your own graph: x, edge_index, y and masks in one npz archive",
        metavar="FILE",
    )
    for kind in ("nodes", "edges"):
        other = "edges" if kind == "nodes" else "nodes"
        group.add_argument(
            f"--{kind}",
            metavar="FILE",
            help=f"your own graph: {kind[:-1]} table (CSV), together with --{other}",
        )
    group.flag("--undirected", "store every edge of your graph both ways")
    group.add_argument(
        "--mask-seed",
        *mask_seed,
        dest="mask_seed",
        type=seed_number,
        metavar="N",
        help="draw 60/20/20 masks with this seed if your graph has none",
    )


@dataclass(frozen=True)
class DataChoice:
    """What the command line says about data; empty where it says nothing."""

    files: dict[str, str] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)  # undirected, seed: of one's own files
    split: int | str | None = None
    download: bool = False
    root: str | None = None

    def words(self, *, places: bool = False) -> list[str]:
        """The choice as words of a command line; without ``places``, without names of folders."""
        words = []
        for kind, path in self.files.items():
            words += [f"--{kind}", path if places else Path(path).name]
        words += ["--undirected"] if self.options.get("undirected") else []
        words += ["--mask-seed", str(self.options["seed"])] if "seed" in self.options else []
        words += [] if self.split is None else ["--split", str(self.split)]
        if places:
            words += ["--root", self.root] if self.root else []
            words += ["--download"] if self.download else []
        return words

    def fields(self) -> dict[str, Any]:
        """Fields of a :class:`~sheafdeq.training.config.TaskConfig`, those that were given."""
        found: dict[str, Any] = {}
        if self.files:
            found["files"] = {kind: str(Path(path).resolve()) for kind, path in self.files.items()}
        if self.split is not None:
            found["split"] = self.split
        return found

    def task(
        self, name: str | None, level: int | None = None, settings: dict[str, Any] | None = None
    ) -> Task:
        """The named task, or one of the files (``name`` is then what they are called)."""
        from sheafdeq.training.config import OWN, TaskConfig
        from sheafdeq.training.run_identity import configured_task

        if name is None and not self.files:
            raise UsageError(
                "name one task, or give --npz FILE, or give --nodes FILE and --edges FILE"
            )
        options = {**(settings or {}), **self.options}
        config = TaskConfig(name=name or OWN, level=level, options=options, **self.fields())
        return configured_task(config, download=self.download)

    def read(self, classes: Sequence[str] | None = None) -> OwnData:
        """What is in the files, labelled or not."""
        from sheafdeq.data.own_files import read_own

        undirected = bool(self.options.get("undirected"))
        return read_own(self.files, undirected=undirected, classes=classes)

    def trained_on(self, record: RunRecord) -> bool:
        """Whether the files are those the run was trained on, byte for byte."""
        from sheafdeq.data.own_files import file_digest

        known = record.config["task"].get("files")
        return (
            bool(known)
            and set(known) == set(self.files)
            and all(
                isinstance(file, dict) and file.get("sha256") == file_digest(self.files[kind])
                for kind, file in known.items()
            )
        )

    def of_run(self, record: RunRecord) -> TaskConfig:
        """The task to look at a run on: its own, with another split, or of the files given.

        Files the run was trained on bring its split and masks along; labels of others get the
        classes the run knows.
        """
        from sheafdeq.training.config import OWN, TaskConfig, TrainingConfig

        trained = TrainingConfig.of_record(record.config, record.id).task
        if not self.files or self.trained_on(record):
            options = {**trained.options, **self.options}
            return trained.model_copy(update={**self.fields(), "options": options})
        classes = record.task.options.get("classes") if "nodes" in self.files else None
        options = {**self.options, **({"classes": classes} if classes else {})}
        return TaskConfig(name=OWN, options=options, **self.fields())


def data_choice(options: Any) -> DataChoice:
    """Read the options, and refuse what does not go together."""
    files = {
        kind: getattr(options, kind)
        for kind in ("npz", "nodes", "edges")
        if getattr(options, kind) is not None
    }
    if "npz" in files and len(files) > 1:
        raise UsageError("give --npz FILE, or --nodes FILE and --edges FILE, not both")
    if len(files) == 1 and "npz" not in files:
        raise UsageError("--nodes and --edges belong together: give both")
    for given, flag, key in (
        (options.undirected, "--undirected", "undirected"),
        (options.mask_seed is not None, "--mask-seed", "seed"),
    ):
        if given and not files:
            raise UsageError(
                f"{flag} is for your own graph; a named task takes --task-set {key}=..."
            )
    needed = [(kind, path, present_file) for kind, path in files.items()]
    if options.root is not None and not options.download:  # a download makes its folder
        needed.append(("root", options.root, present_folder))
    for name, path, checked in needed:
        try:
            checked(path)
        except argparse.ArgumentTypeError as error:
            raise UsageError(f"--{name}: {error}") from error
    settings: dict[str, Any] = {"undirected": True} if options.undirected else {}
    if options.mask_seed is not None:
        settings["seed"] = options.mask_seed
    return DataChoice(files, settings, options.task_split, options.download, options.root)


@contextlib.contextmanager
def chosen_root(root: str | None) -> Iterator[None]:
    """A folder as the data root of this process, and of those it starts, for a while."""
    before = os.environ.get(ROOT_VARIABLE)
    if root is not None:
        os.environ[ROOT_VARIABLE] = str(Path(root).resolve())
    try:
        yield
    finally:
        if root is not None:
            del os.environ[ROOT_VARIABLE]
            if before is not None:
                os.environ[ROOT_VARIABLE] = before
