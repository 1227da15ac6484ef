"""``sheafdeq async``: does a trained recurrence survive late, lost and repeated messages?"""

from __future__ import annotations

import argparse
import sys
from typing import Any

from sheafdeq.cli.arguments import (
    Parser,
    real_number,
    schedule_words,
    seed_number,
    share,
    whole_number,
)
from sheafdeq.cli.data_options import data_choice
from sheafdeq.cli.subject import (
    FINITE_HORIZON,
    Subject,
    add_subject_options,
    chosen_by,
    command_line,
    given,
    study_subjects,
)
from sheafdeq.errors import UsageError

PAPER_REFERENCES = {"sheafdeq": "finite:420", "sheafdeq-no-norm": "finite:500"}
SWEEP = (0, 1, 2, 4, 8, 16, 32, 64)


HELP = "run trained recurrences under bounded staleness and compare with the synchronous prediction"


def configure(parser: Parser) -> None:
    """Simulate partial asynchronism in virtual time and report d_out, the relative Frobenius
    discrepancy of the outputs from the synchronous reference: median [min, max] over sampled
    schedules."""
    add_subject_options(parser, graph="0")
    parser.several(
        "--schedules",
        schedule_words,
        "update window and largest delay, in slots (default 1,0 2,1 5,2 8,4)",
        ("1,0", "2,1", "5,2", "8,4"),
        metavar="S,TAU",
    )
    parser.value("--samples", whole_number(1, 10**6), "schedules of each kind", 20)
    parser.value("--work", real_number(0, 1e9, above=True), "mean updates a node", 500)
    parser.value(
        "--reference",
        reference_words,
        "synchronous reference: converged (default), finite:K, or paper (420 iterations; "
        "500 without pre-norm)",
        "converged",
    )
    parser.value(
        "--reference-steps", whole_number(1, 10**8), "iterations before it is given up", 5000
    )
    parser.value(
        "--tolerance",
        real_number(0, above=True),
        "relative update that counts as converged (default 1e-6)",
        1e-6,
    )
    parser.value("--seed", seed_number, "seed of the first schedule", 0)
    parser.value("--loss", share, "share of messages lost", 0.0, metavar="P")
    parser.value("--duplication", share, "share of messages delivered twice", 0.0, metavar="P")
    parser.flag("--reordering", "receivers read what arrived last, not what is newest")
    parser.value(
        "--limit", whole_number(1, 10**6), "slots without news before a lossy link retransmits", 64
    )
    parser.value(
        "--sleep", share, "chance that a node falls asleep after an update", 0.0, metavar="P"
    )
    parser.value("--sleep-slots", whole_number(0, 10**6), "longest sleep, in slots", 0, metavar="N")
    parser.flag("--faults", "instead of --schedules: a list of unreliable channels at (5, 2)")
    parser.flag("--tau-sweep", "instead of --schedules: (1, tau) for tau = 0, 1, 2, 4, ..., 64")
    parser.value(
        "--warm",
        whole_number(0, 10**7),
        "with --schedules: begin at the state after N synchronous iterations, to tell a "
        "recurrence that cannot bear delays from one whose transient leads elsewhere under "
        "delays (default 0: the model's own start)",
        0,
        metavar="N",
    )
    parser.set_defaults(run=run)


def reference_words(text: str) -> str:
    """``converged``, ``paper``, or ``finite:K`` with K at least 1."""
    kind, _, steps = text.partition(":")
    finite = kind == "finite" and steps.isdecimal() and len(steps) < 10 and int(steps) > 0
    if text not in ("converged", "paper") and not finite:
        raise argparse.ArgumentTypeError(
            f"a reference is converged, paper or finite:K such as finite:420, got {text[:40]!r}"
        )
    return text


def run(options: Any) -> int:
    """Study every subject, print, and write the records."""
    if options.faults and options.tau_sweep:
        raise UsageError("--faults and --tau-sweep are two studies: run them one after the other")
    if options.warm and (options.faults or options.tau_sweep):
        raise UsageError("--warm goes with --schedules, not with --faults or --tau-sweep")
    kind = (
        "faults"
        if options.faults
        else "tau-sweep"
        if options.tau_sweep
        else "warm"
        if options.warm
        else "schedules"
    )
    conditions = conditions_of(options)
    return study_subjects(
        options,
        lambda subject: (f"{subject.file_name}-{kind}", study(subject, conditions, kind, options)),
        summary,
    )


def conditions_of(options: Any) -> list[Any]:
    """The schedules the command line asks for, one of each kind."""
    from sheafdeq.asynchronous import Channel, Schedule

    seed = options.seed
    if options.tau_sweep:
        return [Schedule(1, tau, seed) for tau in SWEEP]
    if options.faults:
        return [
            Schedule(5, 2, seed),
            Schedule(5, 2, seed, Channel(in_order=True)),
            Schedule(5, 2, seed, Channel(loss=0.2)),
            Schedule(5, 2, seed, Channel(loss=0.8)),
            Schedule(5, 2, seed, Channel(duplication=0.3)),
            Schedule(5, 2, seed, Channel(duplication=0.3, reordering=True)),
            Schedule(5, 2, seed, sleep=0.05, sleep_slots=50),
            Schedule(
                5,
                2,
                seed,
                Channel(loss=0.5, duplication=0.3, reordering=True),
                sleep=0.05,
                sleep_slots=50,
            ),
        ]
    channel = Channel(options.loss, options.duplication, options.reordering, limit=options.limit)
    conditions = []
    for text in options.schedules:
        window, _, delay = text.partition(",")
        conditions.append(
            Schedule(
                int(window),
                int(delay),
                seed,
                channel,
                sleep=options.sleep,
                sleep_slots=options.sleep_slots,
            )
        )
    return conditions


def study(subject: Subject, conditions: list[Any], kind: str, options: Any) -> dict[str, Any]:
    """One asynchronous record (schema in :mod:`sheafdeq.asynchronous.study`)."""
    import time

    import torch

    from sheafdeq.asynchronous import staleness_study
    from sheafdeq.diagnostics.measure import evaluating

    begun = time.perf_counter()
    work, reference = options.work, options.reference
    if reference == "paper":
        reference = PAPER_REFERENCES.get(subject.name, "converged")
    if not subject.exposed:
        work = subject.model.steps
        reference = f"finite:{work}"
    model, graph = subject.model, subject.split.graph
    start = None
    if options.warm:
        with torch.no_grad(), evaluating(model):
            start = model.solve(model.prepare(graph), graph, steps=options.warm).value  # type: ignore[operator]
    result = staleness_study(
        model,  # type: ignore[arg-type]
        graph,
        conditions,
        samples=options.samples,
        work=work,
        reference=reference,
        reference_steps=options.reference_steps,
        tolerance=options.tolerance,
        score=subject.score,
        initial_state=start,
        progress=None
        if options.json
        else lambda line: print(f"  {line}", file=sys.stderr, flush=True),
    )
    payload = result.to_json()
    payload["simulation"] = FINITE_HORIZON.get(subject.name, "exact")
    return {
        **payload,
        "study": kind,
        **({"warm": options.warm} if options.warm else {}),
        "command": command_line(
            "async",
            subject,
            data_choice(options),
            **given(options, "samples work reference"),
            **chosen_by(options),
            **given(options, "tau_sweep faults"),
            schedules=[] if kind not in ("schedules", "warm") else options.schedules,
            **given(options, "warm loss duplication reordering sleep sleep_slots"),
        ),
        **subject.facts(),
        "timing": {"seconds": round(time.perf_counter() - begun, 1)},
    }


def summary(payload: dict[str, Any]) -> str:
    """The table with median [min, max]."""
    reference = payload["reference"]
    residual = "-" if reference["residual"] is None else f"{reference['residual']:.2e}"
    simulation = "" if payload["simulation"] == "exact" else f" ({payload['simulation']})"
    lines = [
        f"{payload['model']['title']}, {payload['task']['title']}, {payload['graph']}, seed "
        f"{payload['seed']}{simulation}",
        f"  reference ({reference['kind']} asked for): {reference['status']} after "
        f"{reference['steps']} iterations, residual {residual}, "
        f"{payload['task']['score']} {reference['score']:.4g}",
        f"  {'condition':<44} {'d_out: median [min, max]':<36} {'score':>7} "
        f"{'staleness':>16}  runs",
    ]
    for condition in payload["conditions"]:
        d_out, score, stale = condition["d_out"], condition["score"], condition["staleness"]
        text = (
            "no finite run"
            if d_out is None
            else (f"{d_out['median']:.3e} [{d_out['min']:.3e}, {d_out['max']:.3e}]")
        )
        shown = "-" if score is None else f"{score['median']:.2f}"
        statuses = ", ".join(f"{count} {name}" for name, count in condition["statuses"].items())
        broken = f", {condition['violations']} violations" if condition["violations"] else ""
        lines.append(
            f"  {condition['label']:<44} {text:<36} {shown:>7} {stale['mean']:>6.2f} (max "
            f"{stale['max']:>2})  {statuses}{broken}"
        )
    return "\n".join(lines)
