"""Try to catch a certificate lying: random and hostile problems (:mod:`.adversary`), claimed
against observed (:mod:`.contradiction`).

A violation is a certificate that something contradicts, a verdict that is known to be false of the
draw, a refusal without a reason where there is one, or an exception. ``with_rule`` puts another
rule in place of the registered one, ``certifier`` another procedure in place of ``certify``: the
audit must reject wrong ones (``wrong_sheaf_rule``, ``wrong_attention_rule``, ``careless``,
``gullible``, ``hasty``, ``narrow``).
"""

from __future__ import annotations

import copy
import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from sheafdeq.certificates.adversary import ATTACKS, AttackCase, draw_attack
from sheafdeq.certificates.certificate import Certificate, Domain, Level, Metric, Verdict, Witness
from sheafdeq.certificates.contradiction import check_certificate
from sheafdeq.certificates.draws import draw_problem
from sheafdeq.certificates.examine import is_positive
from sheafdeq.certificates.judgement import certify
from sheafdeq.certificates.problem import Effort, Problem
from sheafdeq.certificates.refute import random_starts, settle
from sheafdeq.certificates.rule import Prover, rule_for
from sheafdeq.certificates.rules.pieces import certified
from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.theory.coefficients import mu

__all__ = [
    "AUDIT_EFFORT",
    "SCHEDULE",
    "AuditReport",
    "Contradiction",
    "audit",
    "careless",
    "check_certificate",
    "draw_problem",
    "gullible",
    "hasty",
    "narrow",
    "wrong_attention_rule",
    "wrong_sheaf_rule",
]

AUDIT_EFFORT = Effort("audit", 150, 2, 4, 10, False)
LIGHT_EFFORT = Effort("audit-light", 40, 1, 3, 6, False)
"""For attacks whose answer does not rest on a search for a second equilibrium."""
SCHEDULE = (
    "random",
    "non-finite",
    "random",
    "extreme",
    "random",
    "subclass",
    "random",
    "threshold",
    "extreme",
    "float32",
)
"""The attack of draw k is entry k mod 10."""
Certifier = Callable[..., Certificate]


@dataclass(frozen=True)
class Contradiction:
    """A certificate and what contradicts it."""

    draw: int
    attack: str
    model: str
    claim: str
    observed: str


@dataclass
class AuditReport:
    """Counts of attacks and verdicts, the tightest observation, and every violation."""

    draws: int = 0
    attacks: Counter[str] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    tightest: float = 0.0  # largest observed ratio / certified rate
    violations: list[Contradiction] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.verdicts.items()))
        attacks = ", ".join(
            f"{name} {self.attacks[name]}" for name in ATTACKS if self.attacks[name]
        )
        return (
            f"{self.draws} draws ({attacks}): {len(self.violations)} false certificates; {counts}; "
            f"largest observed ratio {self.tightest:.4f} of the certified rate"
        )


def audit(
    draws: int,
    *,
    seed: int = 0,
    first: int = 0,
    only: type | None = None,
    with_rule: Prover | None = None,
    certifier: Certifier = certify,
    attacks: Sequence[str] = SCHEDULE,
    effort: Effort = AUDIT_EFFORT,
    progress: Callable[[int, AuditReport], None] | None = None,
) -> AuditReport:
    """Certify ``draws`` problems, numbered from ``first``, and check every answer. ``only`` one
    model type, where it is random."""
    report = AuditReport()
    for number in range(first, first + draws):
        attack = draw_attack(attacks[number % len(attacks)], number, seed, only)
        attack.model.eval()
        report.draws += 1
        report.attacks[attack.name] += 1
        title = type(attack.model).__name__.removeprefix("Derived")
        light = effort is AUDIT_EFFORT and attack.name in ("extreme", "subclass")
        options = {
            "effort": LIGHT_EFFORT if light else effort,
            "seed": number,
            **({} if with_rule is None else {"with_rule": with_rule}),
        }
        claim, contradiction = "none", None
        try:
            certificate = certifier(attack.model, attack.graph, **options)
            claim = str(certificate)
            report.verdicts[f"{title} {certificate.verdict} ({certificate.level})"] += 1
            ratio, contradiction = _judge(certificate, attack, certifier, options)
            report.tightest = max(report.tightest, ratio)
        except Exception as error:  # an exception is the violation
            contradiction = f"ended in {type(error).__name__}: {error}"
            report.verdicts[f"{title} exception"] += 1
        if contradiction is not None:
            report.violations.append(
                Contradiction(number, attack.name, title, claim, contradiction)
            )
        if progress is not None:
            progress(number, report)
    return report


def _judge(
    certificate: Certificate, attack: AttackCase, certifier: Certifier, options: dict[str, object]
) -> tuple[float, str | None]:
    """(observed ratio / rate, what is wrong with the answer to this attack)."""
    json.dumps(certificate.to_json(), allow_nan=False)
    certificate.report()
    if certificate.verdict in attack.forbidden and not (
        attack.forbidden_globally and certificate.level is Level.BALL
    ):
        return 0.0, f"cannot be: {attack.because}"
    if attack.forbidden and attack.name in ("non-finite", "subclass") and not certificate.reason:
        return 0.0, f"no reason is given, and there is one: {attack.because}"
    if attack.twin is not None:
        other = certifier(attack.twin, attack.graph, **options)
        if (other.verdict, other.rate) != (certificate.verdict, certificate.rate):
            return 0.0, f"a subclass that changes nothing is {certificate}, its parent {other}"
    if attack.name == "subclass" and attack.twin is None:
        # nothing was claimed of it; its map need not be defined where the parent's is
        return 0.0, None
    model = copy.deepcopy(attack.model).double().eval()
    return check_certificate(
        certificate,
        model,
        attack.graph.to(torch.float64),
        seed=attack_seed(options),
        settle=attack.resolved,
    )


def attack_seed(options: dict[str, object]) -> int:
    """The seed of the checks is that of the certificate."""
    seed = options["seed"]
    assert isinstance(seed, int)
    return seed


# ---------------------------------------------------------------------- wrong on purpose


def wrong_sheaf_rule(problem: Problem) -> Certificate:
    """The published argument: ordinary subhomogeneity, rate mu(beta), for every SheafDEQ. Wrong,
    and the audit must say so."""
    model = problem.model
    assert isinstance(model, SheafDEQ)
    rate = mu(model.shift).upper
    if rate >= 1.0:
        return Certificate(Verdict.NOT_CERTIFIED, Level.NONE, problem.title, problem.place)
    return _wrongly_certified(problem, rate, "the published Theorem 3.2 (refuted)")


def wrong_attention_rule(problem: Problem) -> Certificate:
    """Attention treated as if it did not move with the state: rate m(beta), D forgotten. Wrong, and
    the audit must say so."""
    model = problem.model
    assert isinstance(model, StrongAttnDEQ)
    rate = model.gate.coefficient(model.shift).upper
    return _wrongly_certified(problem, rate, "Theorem 24 without its D (wrong)")


def _wrongly_certified(problem: Problem, rate: float, grounds: str) -> Certificate:
    everywhere = (Metric("thompson"), Domain("positive"))
    return certified(problem, Level.GLOBAL, rate, *everywhere, grounds, ())


def careless(model: EquilibriumModel, graph: Graph, *, effort: Effort, seed: int) -> Certificate:
    """Asks the rule at once: no look at NaN, at subclasses, at what was replaced. Wrong, and the
    audit must say so."""
    model = copy.deepcopy(model).double().eval()
    graph = graph.to(torch.float64)
    with torch.no_grad():
        problem = Problem(model, graph, model.prepare(graph), None, effort, seed)
    return rule_for(type(model))(problem)


def gullible(model: EquilibriumModel, graph: Graph, *, effort: Effort, seed: int) -> Certificate:
    """Takes two small residuals for two equilibria. Wrong near a threshold, and the audit must say
    so."""
    certificate = certify(model, graph, effort=effort, seed=seed)
    if certificate.verdict is not Verdict.NOT_CERTIFIED or certificate.reason.startswith(
        ("parameter", "preparing")
    ):
        return certificate
    model, graph = copy.deepcopy(model).double().eval(), graph.to(torch.float64)
    with torch.no_grad():
        problem = Problem(model, graph, model.prepare(graph), None, effort, seed)
        if not is_positive(problem):
            return certificate
        start = model.initial_state(problem.context)
        starts = random_starts((start.shape[0], start.shape[1]), 4, seed, None)
        ends = [settle(lambda z: model.step(z, problem.context), s, steps=3000) for _, s in starts]
    for one in ends:
        for other in ends:
            gap = Metric("thompson")(one.state, other.state)
            if one.converged and other.converged and gap > 1e-3:
                witness = Witness(
                    one.state,
                    other.state,
                    (one.residual, other.residual),
                    gap,
                    True,
                    "residuals below 1e-9",
                )
                return Certificate(
                    Verdict.REFUTED,
                    Level.NONE,
                    certificate.model,
                    certificate.graph,
                    witness=witness,
                )
    return certificate


def hasty(model: EquilibriumModel, graph: Graph, *, effort: Effort, seed: int) -> Certificate:
    """Claims a rate that is smaller by 3 %. Wrong where the bound is tight, and the audit must say
    so."""
    certificate = certify(model, graph, effort=effort, seed=seed)
    return (
        certificate
        if certificate.rate is None
        else replace(certificate, rate=0.97 * certificate.rate)
    )


def narrow(model: EquilibriumModel, graph: Graph, *, effort: Effort, seed: int) -> Certificate:
    """States a box a little smaller than what every start enters. Wrong, and the audit must say
    so."""
    certificate = certify(model, graph, effort=effort, seed=seed)
    domain = certificate.domain
    if (
        domain is None
        or domain.lower is None
        or domain.upper is None
        or domain.enters_after is None
    ):
        return certificate
    return replace(
        certificate,
        domain=replace(domain, lower=domain.lower + 0.6 * (domain.upper - domain.lower)),
    )
