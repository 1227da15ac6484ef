"""Thousands of cases over a pool of processes with limits: counts of outcomes, and every failure by
its number."""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from sheafdeq.errors import InputError
from sheafdeq.options import unknown_name

__all__ = ["Report", "run_campaign"]

SECONDS = 60.0
"""What a case may take; a machine under load is slow, a hang is longer."""
_START_SECONDS = 300.0


@dataclass
class Report:
    """What a campaign found."""

    seed: int
    cases: int = 0
    outcomes: dict[str, Counter[str]] = field(default_factory=dict)  # target -> outcome -> count
    failures: list[dict[str, Any]] = field(default_factory=list)
    slowest: float = 0.0  # seconds of one case
    slowest_case: str = ""
    largest: float = 0.0  # growth of the resident size in one case, in MiB

    def add(self, answer: dict[str, Any]) -> None:
        """Count one case."""
        self.cases += 1
        self.outcomes.setdefault(answer["target"], Counter())[answer["outcome"]] += 1
        if answer.get("seconds", 0.0) > self.slowest:
            self.slowest, self.slowest_case = answer["seconds"], answer["seed"]
        self.largest = max(self.largest, answer.get("megabytes", 0.0))
        if answer["outcome"] == "failed":
            self.failures.append({key: answer[key] for key in ("target", "seed", "failure")})

    def payload(self) -> dict[str, Any]:
        """Plain values for a file."""
        return {
            "seed": self.seed,
            "cases": self.cases,
            "failed": len(self.failures),
            "targets": {
                name: dict(sorted(counts.items())) for name, counts in sorted(self.outcomes.items())
            },
            "limits": {"seconds": SECONDS, "memory_megabytes": 1536},
            "failures": self.failures,
            "timing": {
                "slowest_case": self.slowest_case,
                "slowest_case_seconds": self.slowest,
                "largest_growth_megabytes": self.largest,
            },
        }


class _Worker:
    """A process of :mod:`sheafdeq.fuzzing.case_process` and the case it is trying."""

    def __init__(self, selector: selectors.BaseSelector, targets: Sequence[str]) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MPLBACKEND": "agg"}
        environment.pop("SHEAFDEQ_DEBUG", None)
        self.process = subprocess.Popen(
            [sys.executable, "-m", "sheafdeq.fuzzing.case_process", *targets],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )
        self.targets = targets
        self.case: dict[str, Any] | None = None
        self.deadline = time.monotonic() + _START_SECONDS
        selector.register(self.process.stdout, selectors.EVENT_READ, self)  # type: ignore[arg-type]

    def give(self, case: dict[str, Any]) -> None:
        """Send a case."""
        assert self.process.stdin is not None
        self.case, self.deadline = case, time.monotonic() + SECONDS
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(case) + "\n")
            self.process.stdin.flush()

    def end(self, selector: selectors.BaseSelector) -> None:
        """Let it go, by force if need be."""
        selector.unregister(self.process.stdout)  # type: ignore[arg-type]
        with contextlib.suppress(OSError):
            self.process.stdin.close()  # type: ignore[union-attr]
        try:
            self.process.wait(5 if self.case is None else 0)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()  # type: ignore[union-attr]


def cases_of(count: int, seed: int, targets: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Cases by number, the targets in turn."""
    for number in range(count):
        name = targets[number % len(targets)]
        yield {"target": name, "seed": f"{seed}:{name}:{number}"}


def run_campaign(
    count: int,
    seed: int = 0,
    *,
    targets: Sequence[str] | None = None,
    jobs: int = 2,
    tell: Callable[[str], None] | None = None,
) -> Report:
    """Try ``count`` cases over the targets (default all) in ``jobs`` processes."""
    from sheafdeq.fuzzing.broken_targets import BROKEN
    from sheafdeq.fuzzing.targets import TARGETS

    chosen = list(targets or TARGETS)
    for name in chosen:
        if name not in TARGETS and name not in BROKEN:
            raise unknown_name("there is no target", name, TARGETS)
    if count < 1 or jobs < 1:
        raise InputError(f"cases and jobs must be at least 1, got {count} and {jobs}")
    report, waiting = Report(seed), cases_of(count, seed, chosen)
    begun = time.monotonic()
    with selectors.DefaultSelector() as selector:
        workers = [_Worker(selector, chosen) for _ in range(min(jobs, count))]
        try:
            while report.cases < count:
                for key, _ in selector.select(timeout=1.0):
                    worker: _Worker = key.data
                    line = worker.process.stdout.readline()  # type: ignore[union-attr]
                    if line and "ready" not in (answer := json.loads(line)):
                        report.add(answer)
                        worker.case = None
                        if tell is not None and report.cases % 500 == 0:
                            speed = report.cases / (time.monotonic() - begun)
                            tell(
                                f"{report.cases} of {count} cases, {len(report.failures)} "
                                f"failed, {speed:.0f} a second"
                            )
                    elif not line:
                        _lost(
                            worker,
                            f"killed its process (exit code {worker.process.wait()})",
                            report,
                            workers,
                            selector,
                        )
                        continue
                    if (case := next(waiting, None)) is not None:
                        worker.give(case)
                    else:
                        worker.deadline = float("inf")
                for worker in [w for w in workers if time.monotonic() > w.deadline]:
                    worker.process.kill()
                    _lost(worker, f"took more than {SECONDS:g} seconds", report, workers, selector)
        finally:
            for worker in workers:
                worker.end(selector)
    return report


def _lost(
    worker: _Worker,
    why: str,
    report: Report,
    workers: list[_Worker],
    selector: selectors.BaseSelector,
) -> None:
    """Count the case of a dead worker as failed and put another worker in its place."""
    case = worker.case
    worker.end(selector)
    workers.remove(worker)
    if case is None:
        raise InputError(f"a worker of the fuzzer did not start: it {why}")
    report.add({**case, "outcome": "failed", "failure": why})
    workers.append(_Worker(selector, worker.targets))
