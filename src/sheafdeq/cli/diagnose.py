"""``sheafdeq diagnose``: does a trained recurrence settle when it goes on past its horizon?"""

from __future__ import annotations

from typing import Any

from sheafdeq.cli.arguments import Parser, real_number, seed_number, whole_number
from sheafdeq.cli.data_options import data_choice
from sheafdeq.cli.subject import (
    Subject,
    add_subject_options,
    chosen_by,
    command_line,
    study_subjects,
)

HELP = "continue trained recurrences past their horizon and measure whether they settle"


def configure(parser: Parser) -> None:
    """Iterate from six positive starts; report updates, discrepancies, scores, settling times,
    agreement of the starts, the observed Thompson rate and the Jacobian's spectral radius at the
    end. Observations, not guarantees."""
    add_subject_options(parser, graph="all")
    parser.value("--iterations", whole_number(1, 10**7), "", 100)
    parser.value("--seed", seed_number, "of the random starts", 0)
    parser.value(
        "--settling-tolerance",
        real_number(0, above=True),
        "relative change of a node at rest (default 1e-3)",
        1e-3,
    )
    parser.value(
        "--damping",
        real_number(0, 1, above=True),
        "take the share A of every step",
        1.0,
        metavar="A",
    )
    parser.value(
        "--undamped", whole_number(0, 10**7), "leave the first M steps undamped", 0, metavar="M"
    )
    parser.flag("--no-spectrum", "leave the spectral radius out")
    parser.set_defaults(run=run)


def run(options: Any) -> int:
    """Examine every subject, print, and write the records."""
    ending = "" if options.damping == 1.0 else "-damped"
    return study_subjects(
        options,
        lambda subject: (f"{subject.file_name}{ending}", examine(subject, options)),
        summary,
    )


def examine(subject: Subject, options: Any) -> dict[str, Any]:
    """One diagnostics record."""
    import time

    from sheafdeq.diagnostics import multistart, spectral_radius
    from sheafdeq.records import DIAGNOSIS_SCHEMA

    begun = time.perf_counter()
    result = multistart(
        subject.model,  # type: ignore[arg-type]
        subject.split.graph,
        iterations=options.iterations,
        seed=options.seed,
        score=subject.score,
        exposed=subject.exposed,
        settling_tolerance=options.settling_tolerance,
        damping=options.damping,
        undamped=options.undamped,
    )
    spectrum = None
    if not options.no_spectrum and result.trajectories[0].finite:
        spectrum = spectral_radius(
            subject.model,  # type: ignore[arg-type]
            subject.split.graph,
            result.trajectories[0].end.state,
        )
    facts = subject.facts()
    if options.damping != 1.0:
        facts |= {"damping": options.damping, "undamped": options.undamped}
        facts |= {
            "label": f"{facts.get('label') or facts['model']['title']}, damped {options.damping:g}"
        }
    return {
        "schema": DIAGNOSIS_SCHEMA,
        "command": command_line(
            "diagnose",
            subject,
            data_choice(options),
            iterations=options.iterations,
            **chosen_by(options),
            damping=None if options.damping == 1.0 else options.damping,
            undamped=options.undamped,
        ),
        **facts,
        "continued": result.to_json(),
        "spectrum": None if spectrum is None else spectrum.to_json(),
        "timing": {"seconds": round(time.perf_counter() - begun, 1)},
    }


def summary(payload: dict[str, Any]) -> str:
    """What a person wants to know first."""
    continued = payload["continued"]
    default = continued["trajectories"][0]
    horizon, last = continued["horizon"], continued["iterations"]
    bands = continued["bands"]

    def at(name: str, k: int) -> str:
        values = bands[name]["median"]
        return "-" if k >= len(values) or values[k] is None else f"{values[k]:.3g}"

    settling = default["settling"]
    nodes = sum(settling["counts"]) + settling["unsettled"]
    groups = continued["agreement"]["groups"]
    lost = [t for t in continued["trajectories"] if t["lost_at"] is not None]
    lines = [
        f"{payload['model']['title']}, {payload['task']['title']}, {payload['graph']}, seed "
        f"{payload['seed']}",
        "  starts            "
        f"{', '.join(f'{count} {name}' for name, count in continued['statuses'].items())}"
        f"; {continued['counted']} counted",
        f"  update of {continued['update_of']:<7} {at('update', horizon - 1)} at {horizon}, "
        f"{at('update', last - 1)} at {last} "
        "(median)",
        f"  prediction gap    {at('prediction_discrepancy', horizon)} at {horizon} (median, to "
        f"the state at {last})",
        f"  {payload['task']['score']:<17} {at('score', horizon)} at {horizon}, "
        f"{at('score', last)} at {last} (median)",
        "  score lost        "
        + (
            ", ".join(f"start {t['start']} at {t['lost_at']}" for t in lost)
            if lost
            else f"never within {last} iterations"
        ),
        f"  ends              {len(groups)} group(s): "
        f"{'; '.join(', '.join(group) for group in groups)}",
        f"  settled nodes     {nodes - settling['unsettled']} of {nodes} to "
        f"{settling['tolerance']:g}, "
        f"median after {settling['median']}",
    ]
    if default["thompson_rate"] is not None:
        lines.append(
            f"  Thompson rate     {default['thompson_rate']:.4f} observed over the tail "
            "of the default start"
        )
    spectrum = payload["spectrum"]
    if spectrum is not None:
        note = spectrum["method"] + ("" if spectrum["converged"] else ", not converged")
        lines.append(
            f"  spectral radius   {spectrum['radius']:.4f} at the end of the default "
            f"start (estimate: {note})"
        )
    return "\n".join(lines)
