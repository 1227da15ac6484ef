"""Does every command that writes survive being killed? SIGKILL at every file operation and at
random moments.

    python benchmarks/crash_commands.py --kills 3 --operations 12 --out results/crash_safety
    # a writer that is broken on purpose: must be caught
    python benchmarks/crash_commands.py --commands train certify --broken

Each command runs in a forked child of this process (the libraries are loaded once). First
undisturbed, which gives the files to expect and the number N of file operations (rename, replace,
sync, link, remove, make a folder, open for writing). Then, for each of the N operations (or
``--operations`` of them, evenly spread), from an empty folder: a child that is killed just before
it; and ``--kills`` children killed at random moments of one run, all in one folder. After every
kill the folder is examined: every visible file must be whole. Then the command runs once more and
must succeed with the files of the undisturbed run, up to timing, and leave no file aside.

Counted: kills, half files seen, commands that failed afterwards, files lost, extra and differing,
files left aside. ``benchmarks/crash_safety.py`` does the same for sweeps with their workers and
drivers.
"""

from __future__ import annotations

import argparse
import builtins
import contextlib
import hashlib
import importlib
import json
import os
import pkgutil
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from sheafdeq import records
from sheafdeq.cli import main as sheafdeq

TASK = ["--task", "community", "--level", "10", "--task-set", "nodes=30"]
TASK += ["--task-set", "train_seeds=[1]", "--task-set", "test_seeds=[2]", "--task-set", "k=3"]
SWEEP = """
name = "toy"
seeds = [42, 43]
[training]
max_epochs = 3
test_every = 1
[[tasks]]
name = "community"
level = 10
options = { nodes = 30, train_seeds = [1], test_seeds = [2], k = 3 }
[[models]]
name = "ignn"
options = [{}]
"""
TIMED = frozenset({"timing", "seconds", "machine", "finished", "generated"})
OPERATIONS = ("replace", "rename", "fsync", "link", "unlink", "mkdir", "rmdir")
KILLED = -signal.SIGKILL
OUT = re.compile("OUT(/|$)")
MARKER = ".sheafdeq-report"  # how a report knows its own folder


def load_everything() -> None:
    """Import once what the children need; forked, they start at once."""
    import matplotlib

    matplotlib.use("Agg")
    import sheafdeq as package

    for module in pkgutil.walk_packages(package.__path__, "sheafdeq."):
        if not module.name.endswith(("__main__", "_native")):
            importlib.import_module(module.name)
    from sheafdeq.cli.certificate_records import certificate_code
    from sheafdeq.registry import COMMUNITY, build_model
    from sheafdeq.training.config import TrainingConfig
    from sheafdeq.training.run_identity import code_of

    code_of(
        TrainingConfig.parse({"task": "community", "model": "ignn"})
    )  # the sources are read once, too
    certificate_code(build_model("ignn", COMMUNITY))


def commands(runs: Path, grid: Path) -> dict[str, list[str]]:
    """Command lines by name; ``OUT`` stands for the folder written to."""
    run = str(sorted(path for path in runs.iterdir() if not path.name.startswith("."))[0])
    stage = "epochs=2,learning_rate=0.001,residual_weight=1"
    return {
        "train": [
            "train",
            *TASK,
            "--model",
            "ignn",
            "--epochs",
            "2",
            "--out",
            "OUT",
            "--checkpoint-seconds",
            "0",
        ],
        "settle": ["settle", run, "--out", "OUT", "--stage", stage, "--checkpoint-seconds", "0"],
        "sweep export": [
            "sweep",
            "export",
            str(grid),
            "--out",
            str(runs),
            "--results",
            "OUT",
            "--checkpoints",
        ],
        "certify": [
            "certify",
            "--all",
            str(runs),
            "--out",
            "OUT",
            "--effort",
            "quick",
            "--threads",
            "1",
        ],
        "diagnose": ["diagnose", run, "--out", "OUT", "--iterations", "30", "--threads", "1"],
        "async": [
            "async",
            run,
            "--out",
            "OUT",
            "--samples",
            "1",
            "--work",
            "10",
            "--schedules",
            "2,1",
            "--threads",
            "1",
        ],
        "evaluate": ["evaluate", run, "--out", "OUT"],
        "figures": [
            "figures",
            "--results",
            str(runs),
            "--runs",
            str(runs),
            "--only",
            "training",
            "--out",
            "OUT",
        ],
        "report": ["report", "--results", str(runs), "--out", "OUT"],
        "explore": ["explore", run, "--iterations", "4", "--out", "OUT/page.html"],
        "infer": ["infer", run, "--parts", "2", "--mode", "sync", "--output", "OUT/labels.csv"],
    }


# ---------------------------------------------------------------------- one child


def child(words: list[str], before: Callable[[], None] = lambda: None) -> int:
    """Fork a child that carries out a command in silence; its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        quiet = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(quiet, stream)
        before()
        code = sheafdeq(words)
    finally:
        os._exit(code)


def ended(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def watch(target: int | None, note: Path | None) -> Callable[[], None]:
    """Count file operations; die just before the ``target``-th, or write the count to ``note``
    after each."""

    def install() -> None:
        count = 0

        def step() -> None:
            nonlocal count
            count += 1
            if count == target:
                os.kill(os.getpid(), signal.SIGKILL)
            if note is not None:
                with open_as_it_was(note, "w") as stream:
                    stream.write(str(count))

        def wrapped(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **options: Any) -> Any:
                step()
                return function(*arguments, **options)

            return call

        open_as_it_was = builtins.open

        def opened(file: Any, mode: str = "r", *arguments: Any, **options: Any) -> Any:
            if set(mode) & set("wxa+"):
                step()
            return open_as_it_was(file, mode, *arguments, **options)

        for name in OPERATIONS:
            setattr(os, name, wrapped(getattr(os, name)))
        builtins.open = opened  # type: ignore[assignment]

    return install


def break_the_writer() -> None:
    """A writer that writes in place, a half at a time, and a store without rename: to be caught."""

    def in_place(path: Path, data: bytes) -> None:
        with open(path, "wb") as stream:
            stream.write(data[: len(data) // 2])
            stream.flush()
            os.fsync(stream.fileno())
            stream.write(data[len(data) // 2 :])

    for module in list(sys.modules.values()):
        if getattr(module, "write_bytes", None) is records.write_bytes and module is not records:
            module.write_bytes = in_place  # type: ignore[attr-defined]
    records.write_bytes = in_place

    from sheafdeq.training.store import RunStore

    @contextlib.contextmanager
    def straight(store: RunStore, run_id: str) -> Iterator[Path]:
        store.open()
        store.path(run_id).mkdir(exist_ok=True)
        yield store.path(run_id)

    RunStore.writing = straight  # type: ignore[method-assign]


# ---------------------------------------------------------------------- what is in a folder


def problem(path: Path) -> str | None:
    """Why a file is not whole."""
    data = path.read_bytes()
    try:
        if path.suffix == ".json":
            content = json.loads(data)
            if set(content) == {"payload", "sha256"}:
                records.unseal(data, path.name)
        elif path.suffix == ".safetensors":
            from safetensors.torch import load

            load(data)
        elif path.suffix == ".png":
            assert data.endswith(b"IEND\xaeB`\x82")
        elif path.suffix == ".pdf":
            assert data.rstrip().endswith(b"%%EOF")
        elif path.suffix in (".svg", ".html"):
            assert data.rstrip().endswith(b"</svg>" if path.suffix == ".svg" else b"</html>")
        elif not data:
            return "empty"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in path.relative_to(root).parts)


def half_files(root: Path) -> list[str]:
    """Visible files that are not whole, and run directories that are not complete."""
    found = []
    for path in sorted(root.rglob("*")):
        if hidden(path, root):
            continue
        if path.is_file() and (reason := problem(path)):
            found.append(f"{path.relative_to(root)}: {reason}")
        if path.is_dir() and len(path.name) == 64 and not (path / records.RECORD_FILE).is_file():
            found.append(f"{path.relative_to(root)}: a run without its record")
    return found


def contents(root: Path) -> dict[str, str]:
    """Visible files by name: what they say, up to timing."""
    return {
        str(path.relative_to(root)): said(path)
        for path in sorted(root.rglob("*"))
        if path.is_file() and not hidden(path, root)
    }


def said(path: Path) -> str:
    if path.suffix in (
        ".pdf",
        ".svg",
        ".html",
        ".js",
        ".md",
    ):  # they print seconds and dates; their wholeness is checked above
        return "whole"
    data = path.read_bytes()
    if problem(path):
        return "not whole"
    if path.suffix == ".json":
        data = json.dumps(untimed(json.loads(data)), sort_keys=True).encode()
    return hashlib.sha256(data).hexdigest()


def untimed(value: Any) -> Any:
    if isinstance(value, dict):
        kept = {key: untimed(item) for key, item in value.items() if key not in TIMED}
        if {"payload", "sha256"} <= set(kept):
            del kept["sha256"]  # of a payload with timing
        kept.pop("records", None)  # figures name the digests of the records they read
        return kept
    return [untimed(item) for item in value] if isinstance(value, list) else value


def left_aside(root: Path) -> list[str]:
    """Files of unfinished writes and of finished work."""
    files = [path for path in sorted(root.rglob("*")) if path.is_file() and hidden(path, root)]
    return [
        str(path.relative_to(root))
        for path in files
        if path.name != MARKER and ".tasks" not in path.parts
    ]


# ---------------------------------------------------------------------- the experiment


def examine(
    name: str,
    words: list[str],
    folder: Path,
    kills: int,
    most: int | None,
    generator: random.Random,
    broken: bool,
) -> dict[str, Any]:
    """All kills of one command; at ``most`` of its file operations, evenly spread."""
    prepare = break_the_writer if broken else lambda: None

    def start(out: Path, before: Callable[[], None] = lambda: None) -> int:
        def both() -> None:
            prepare()
            before()

        return child([str(out / word[4:]) if OUT.match(word) else word for word in words], both)

    def fresh() -> Path:
        return Path(tempfile.mkdtemp(dir=folder)) / "out"

    note, reference = folder / "note", fresh()
    began = time.monotonic()
    code = ended(start(reference, watch(None, note)))
    if code != 0:
        raise SystemExit(f"{name}: the undisturbed command ended with code {code}")
    seconds = time.monotonic() - began
    expected, operations = contents(reference), int(note.read_text())
    if not expected:
        raise SystemExit(
            f"{name}: the undisturbed command wrote nothing, so there is nothing to lose"
        )
    counts: dict[str, Any] = {
        "command": name,
        "files": len(expected),
        "operations": operations,
        "kills": 0,
        "half_files": 0,
        "failed_afterwards": 0,
        "lost": 0,
        "extra": 0,
        "differing": 0,
        "left_aside": 0,
        "examples": [],
    }

    def after_kill(out: Path) -> None:
        half = half_files(out) if out.exists() else []
        counts["half_files"] += len(half)
        counts["examples"] += half

    def afterwards(out: Path) -> None:
        """The same command once more must mend everything."""
        code = ended(start(out))
        counts["failed_afterwards"] += code != 0
        found = contents(out) if out.exists() else {}
        half, aside = (
            half_files(out) if out.exists() else [],
            left_aside(out) if out.exists() else [],
        )
        counts["half_files"] += len(half)
        counts["lost"] += len(set(expected) - set(found))
        counts["extra"] += len(set(found) - set(expected))
        counts["differing"] += sum(
            found[key] != expected[key] for key in set(found) & set(expected)
        )
        counts["left_aside"] += len(aside)
        counts["examples"] += [
            *half,
            *(f"aside {file}" for file in aside),
            *([f"exit code {code}"] if code else []),
        ]

    points = min(operations, operations if most is None else most)
    counts["killed_at"] = points
    for target in sorted(
        {1 + number * (operations - 1) // max(points - 1, 1) for number in range(points)}
    ):
        out = fresh()
        counts["kills"] += ended(start(out, watch(target, None))) == KILLED
        after_kill(out)
        afterwards(out)
        shutil.rmtree(out.parent)
    out = fresh()
    for _ in range(kills):
        pid = start(out)
        time.sleep(generator.uniform(0.0, seconds))
        os.kill(pid, signal.SIGKILL)
        counts["kills"] += ended(pid) == KILLED
        after_kill(out)
    afterwards(out)
    counts["examples"] = sorted(set(counts["examples"]))[:5]
    return counts


def violations(counts: dict[str, Any]) -> int:
    """Everything that must not happen, in one number."""
    return sum(
        counts[key]
        for key in ("half_files", "failed_afterwards", "lost", "extra", "differing", "left_aside")
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--commands", nargs="+", metavar="NAME", help="only these (default all)")
    parser.add_argument(
        "--kills", type=int, default=10, help="kills of each command at random moments (default 10)"
    )
    parser.add_argument(
        "--operations",
        type=int,
        metavar="N",
        help="kill at N file operations of each command, evenly spread (default all)",
    )
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--broken", action="store_true", help="with a writer that is broken on purpose"
    )
    parser.add_argument("--out", metavar="DIR", help="write the outcome as JSON into this folder")
    options = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="crash-"))
    began = time.monotonic()
    try:
        load_everything()
        grid, runs = folder / "toy.toml", folder / "runs"
        grid.write_text(SWEEP)
        for seed in ("42", "43"):
            words = [
                "train",
                *TASK,
                "--model",
                "ignn",
                "--epochs",
                "3",
                "--test-every",
                "1",
                "--seed",
                seed,
                "--out",
                str(runs),
            ]
            if ended(child(words)) != 0:
                raise SystemExit("the runs to work on could not be trained")
        known = commands(runs, grid)
        outcome = []
        for name in options.commands or known:
            generator = random.Random(f"{options.seed} {name}")
            outcome.append(
                examine(
                    name,
                    known[name],
                    folder,
                    options.kills,
                    options.operations,
                    generator,
                    options.broken,
                )
            )
            print(json.dumps(outcome[-1]), flush=True)
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    total = {
        "kills": sum(counts["kills"] for counts in outcome),
        "violations": sum(map(violations, outcome)),
    }
    facts = {
        "experiment": "SIGKILL at every file operation, and at random moments",
        "seed": options.seed,
        "random_kills": options.kills,
        "operations_at_most": options.operations,
        "broken_writer": options.broken,
        **total,
        "seconds": round(time.monotonic() - began, 1),
        "commands": outcome,
    }
    print(json.dumps({key: value for key, value in facts.items() if key != "commands"}))
    if options.out:
        Path(options.out).mkdir(parents=True, exist_ok=True)
        name = f"commands{'-broken' if options.broken else ''}-seed{options.seed}.json"
        records.write_bytes(Path(options.out) / name, (json.dumps(facts, indent=1) + "\n").encode())
    return 0 if total["violations"] == 0 else 1


if __name__ == "__main__":
    sys.exit(main())
