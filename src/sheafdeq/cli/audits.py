"""``sheafdeq certify --audit`` and ``--audit-solves``: attacks on certificates, statuses and
gradients."""

from __future__ import annotations

import json
import sys
from typing import Any

from sheafdeq.errors import UsageError

__all__ = ["audit_certificates", "audit_statuses"]


def audit_certificates(options: Any) -> int:
    """``--audit``: count what could be caught."""
    from sheafdeq.certificates.audit import audit

    if options.audit < 1:
        raise UsageError(f"--audit needs at least one draw, got {options.audit}")

    def progress(number: int, report: Any) -> None:
        if report.draws % 100 == 0:
            print(report, file=sys.stderr, flush=True)

    report = audit(options.audit, seed=options.seed, first=options.first, progress=progress)
    payload = {
        "schema": "sheafdeq.audit/2",
        "command": f"sheafdeq certify --audit {options.audit} --seed {options.seed} --first "
        f"{options.first}",
        "draws": report.draws,
        "attacks": dict(sorted(report.attacks.items())),
        "verdicts": dict(sorted(report.verdicts.items())),
        "tightest": report.tightest,
        "violations": [vars(violation) for violation in report.violations],
    }
    if options.out:
        from sheafdeq.cli.subject import write_record

        print(
            f"wrote {write_record(options.out, f'audit-{options.seed}-{options.first}', payload)}",
            file=sys.stderr,
        )
    print(json.dumps(payload) if options.json else str(report))
    for violation in report.violations:
        what = f"draw {violation.draw} ({violation.attack}), {violation.model} {violation.claim}"
        print(f"FALSE: {what}: {violation.observed}", file=sys.stderr)
    return 1 if report.violations else 0


def audit_statuses(options: Any) -> int:
    """``--audit-solves``: the same for statuses and gradients."""
    from sheafdeq.certificates.solve_audit import audit_solves

    if options.audit_solves < 1:
        raise UsageError(f"--audit-solves needs at least one draw, got {options.audit_solves}")

    def progress(number: int, report: Any) -> None:
        if report.draws % 500 == 0:
            print(report, file=sys.stderr, flush=True)

    report = audit_solves(
        options.audit_solves, seed=options.seed, first=options.first, progress=progress
    )
    payload = {
        "schema": "sheafdeq.solve-audit/1",
        "command": f"sheafdeq certify --audit-solves {options.audit_solves} --seed {options.seed} "
        f"--first {options.first}",
        "draws": report.draws,
        "graphs": report.graphs,
        "statuses": dict(sorted(report.statuses.items())),
        "tightest_residual": report.tightest_residual,
        "tightest_gradient": report.tightest_gradient,
        "violations": [vars(violation) for violation in report.violations],
    }
    if options.out:
        from sheafdeq.cli.subject import write_record

        print(
            "wrote "
            f"{write_record(options.out, f'solve-audit-{options.seed}-{options.first}', payload)}",
            file=sys.stderr,
        )
    print(json.dumps(payload) if options.json else str(report))
    for violation in report.violations:
        print(
            f"FALSE: draw {violation.draw}, {violation.graph}: {violation.claim}; "
            f"{violation.observed}",
            file=sys.stderr,
        )
    return 1 if report.violations else 0
