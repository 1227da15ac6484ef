"""One process that tries cases one by one: a line with a case comes in, a line with its outcome
goes out."""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import resource
import shutil
import sys
import tempfile
import time
import traceback
import warnings
from pathlib import Path
from typing import Any

from sheafdeq.errors import SheafDEQError
from sheafdeq.fuzzing.guard import ForbiddenAct, Guard

__all__ = ["attempt", "main"]

MEMORY = 3 * 2**29
"""Bytes a case may allocate beyond what the process holds when it starts (1.5 GiB)."""


def attempt(target: Any, seed: str, folder: Path, guard: Guard | None = None) -> dict[str, Any]:
    """Try one case and say how it ended: ``result``, ``named`` or ``failed``."""
    begun = time.perf_counter()
    watch = guard.watching(folder) if guard is not None else contextlib.nullcontext()
    failure, outcome = None, "result"
    said = io.StringIO()
    try:
        with (
            watch,
            warnings.catch_warnings(),
            contextlib.redirect_stdout(said),
            contextlib.redirect_stderr(said),
        ):
            warnings.simplefilter("ignore")
            target(random.Random(seed), folder)
    except SheafDEQError as error:
        outcome = f"named {type(error).__name__}"
    except ForbiddenAct as error:
        failure = f"violation: {error}"
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # what is not named is what is looked for
        last = traceback.extract_tb(error.__traceback__)[-1]
        failure = (
            f"{type(error).__name__}: {str(error)[:300]} ({Path(last.filename).name}:{last.lineno})"
        )
    if failure is None and guard is not None and guard.violations:
        failure = f"violation, swallowed: {guard.violations[0]}"
    seconds = time.perf_counter() - begun
    return {
        "outcome": "failed" if failure else outcome,
        "failure": failure,
        "seconds": round(seconds, 4),
    }


def limit_memory() -> None:
    """Allocations beyond ``MEMORY`` fail from now on."""
    with contextlib.suppress(OSError, ValueError):
        status = Path("/proc/self/status").read_text()
        held = 1024 * int(
            next(line.split()[1] for line in status.splitlines() if line.startswith("VmData"))
        )
        resource.setrlimit(resource.RLIMIT_DATA, (held + MEMORY, resource.RLIM_INFINITY))


def peak_megabytes() -> float:
    """Largest resident size of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def main() -> int:
    """Read cases from standard input until it ends; the arguments name the targets that will
    come."""
    chosen = sys.argv[1:]
    sys.dont_write_bytecode = True
    channel = os.fdopen(os.dup(1), "w")  # what a case prints must not mix with the answers
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    from sheafdeq.fuzzing.broken_targets import BROKEN
    from sheafdeq.fuzzing.record_targets import prepare
    from sheafdeq.fuzzing.targets import PREPARED_TARGETS, TARGETS

    home = Path(tempfile.mkdtemp(prefix="sheafdeq-fuzz-"))
    try:
        os.chdir(home)
        os.environ["SHEAFDEQ_DATA"] = str(home / "data")
        if PREPARED_TARGETS & set(chosen):
            prepare(home / "prepared")
        guard = Guard()
        for name in [name for name in TARGETS if name in chosen]:  # imports happen here, unwatched
            folder = home / f"warm-{name}"
            folder.mkdir()
            for number in range(3):
                attempt(TARGETS[name], f"warm {name} {number}", folder)
        limit_memory()
        print(json.dumps({"ready": True}), file=channel, flush=True)
        for line in sys.stdin:
            case = json.loads(line)
            folder = home / "case"
            folder.mkdir()
            os.chdir(folder)
            target = {**TARGETS, **BROKEN}[case["target"]]
            before = peak_megabytes()
            answer = attempt(target, case["seed"], folder, guard)
            answer |= {"megabytes": round(peak_megabytes() - before, 1), **case}
            os.chdir(home)
            shutil.rmtree(folder, ignore_errors=True)
            print(json.dumps(answer), file=channel, flush=True)
    finally:
        shutil.rmtree(home, ignore_errors=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
