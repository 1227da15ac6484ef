"""Try to catch a certificate lying: random models, graphs and weights; claimed against observed.

For every draw the model is certified, and then

* pairs of states of the certified domain are mapped, and the observed ratio  d(T(x), T(y)) / d(x, y)  must not exceed the rate,
  for random pairs, close pairs and pairs that differ in few entries (where signs cannot cancel);
* the worst direction at a few states is tried as well: signs of a row of the Jacobian, as far as the domain allows;
* starts of the domain must end at the same state.

``with_rule`` puts another rule in place of the registered one: the audit must reject a wrong rule (``wrong_sheaf_rule``,
``wrong_attention_rule``).
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sheafdeq.certificates.certificate import Assumption, Certificate, Domain, Level, Metric, Verdict
from sheafdeq.certificates.interval import EPSILON
from sheafdeq.certificates.jacobian import jacobian
from sheafdeq.certificates.rules import Effort, Problem, Rule, certify
from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.eignn import EIGNN
from sheafdeq.models.energy_gnn import EnergyGNN
from sheafdeq.models.ignn import IGNN
from sheafdeq.models.sheaf_cascade import SheafCascade
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.models.split import GATES
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.models.strong_sheaf import StrongSheafDEQ
from sheafdeq.theory.coefficients import mu

__all__ = [
    "AUDIT_EFFORT",
    "AuditReport",
    "Violation",
    "audit",
    "check_certificate",
    "draw_problem",
    "wrong_attention_rule",
    "wrong_sheaf_rule",
]

AUDIT_EFFORT = Effort("audit", 300, 4, 4, 10, False)
ROUNDING = 1e-7
"""An observed ratio above rate * (1 + this), and above what rounding can do, is a violation; distances below 1e-6 are not used
(their ratios are rounding)."""


@dataclass(frozen=True)
class Violation:
    """A certificate and what contradicts it."""

    draw: int
    model: str
    claim: str
    observed: str


@dataclass
class AuditReport:
    """Counts of verdicts, the tightest observation, and every violation."""

    draws: int = 0
    verdicts: Counter[str] = field(default_factory=Counter)
    tightest: float = 0.0  # largest observed ratio / certified rate
    violations: list[Violation] = field(default_factory=list)

    def __str__(self) -> str:
        counts = ", ".join(f"{name} {count}" for name, count in sorted(self.verdicts.items()))
        return (
            f"{self.draws} draws: {len(self.violations)} false certificates; {counts}; "
            f"largest observed ratio {self.tightest:.4f} of the certified rate"
        )


# ---------------------------------------------------------------------- draws


def draw_graph(generator: torch.Generator, features: int) -> Graph:
    """A small random graph: undirected or directed, possibly with loops, parallel edges and isolated nodes."""
    n = int(torch.randint(2, 9, (1,), generator=generator))
    count = int(torch.randint(1, 3 * n, (1,), generator=generator))
    pairs = torch.randint(0, n, (2, count), generator=generator)
    if float(torch.rand(1, generator=generator)) < 0.7:
        pairs = pairs[:, pairs[0] != pairs[1]]
        pairs = torch.cat([pairs, pairs.flip(0)], dim=1)
    x = 10.0 ** float(torch.rand(1, generator=generator) * 2 - 1) * torch.randn(n, features, generator=generator)
    return Graph.build(x.double(), pairs)


def draw_problem(number: int, seed: int = 0, only: type | None = None) -> tuple[EquilibriumModel, Graph]:
    """Model, graph and weights of one draw: every model with a rule, sizes 1 to 4, weights from 0.01 to 100 times Xavier."""
    generator = torch.Generator().manual_seed(seed * 1_000_003 + number)

    def uniform() -> float:
        return float(torch.rand(1, generator=generator))

    graph = draw_graph(generator, 2)
    d, q = 1 + int(3 * uniform()), 1 + int(4 * uniform())
    kinds: list[Callable[[], EquilibriumModel]] = [
        lambda: SheafDEQ(2, 2, d, q, shift=1.05 + 2 * uniform() ** 2, pre_norm=uniform() < 0.8),
        lambda: StrongSheafDEQ(2, 2, d, q, shift=1.6 + uniform(), hidden=4),
        lambda: SheafCascade(2, 2, d, q, levels=1 + int(3 * uniform()), hidden=4, edge_hidden=4, shift=1.4 + uniform()),
        lambda: IGNN(2, 2, width=1 + int(5 * uniform()), kappa=0.05 + 0.9 * uniform()),
        lambda: APPNP(2, 2, width=3, alpha=0.02 + 0.9 * uniform(), shift=None if uniform() < 0.4 else 1.01 + uniform()),
        lambda: EIGNN(2, 2, width=1 + int(5 * uniform()), gamma=0.05 + 0.9 * uniform(), self_loops=uniform() < 0.5),
        lambda: EnergyGNN(2, 2, state_width=2, hidden=2, beta=10.0 ** (-2 * uniform())),
        lambda: StrongAttnDEQ(2, 2, d, q, shift=1.6 + 3 * uniform(), gate=sorted(GATES)[int(len(GATES) * uniform())], hidden=4),
    ]
    names = [SheafDEQ, StrongSheafDEQ, SheafCascade, IGNN, APPNP, EIGNN, EnergyGNN, StrongAttnDEQ]
    # Half of the draws are SheafDEQs: theirs is the rule with the most arithmetic in it.
    choice = names.index(only) if only is not None else (0 if uniform() < 0.5 else 1 + int(7 * uniform()))
    with torch.random.fork_rng():
        torch.manual_seed(int(torch.randint(0, 2**31 - 1, (1,), generator=generator)))
        model = kinds[choice]().double()
    scale = 10.0 ** (3 * uniform() - 2) if choice == 0 else 10.0 ** (4 * uniform() - 2)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            if isinstance(model, EnergyGNN):  # its weights are softplus of the parameters: positive whatever is drawn
                parameter.add_(1.5 * noise)
            elif not isinstance(model, IGNN):
                # Xavier has zero biases; the noise moves them too, so that kinks and drives are everywhere.
                parameter.mul_(scale).add_(0.3 * scale * noise)
        if isinstance(model, SheafDEQ) and uniform() < 0.5:
            # Weakly adaptive maps: without these few draws would be certified globally.
            for generators in (model.source_maps, model.target_maps):
                generators[0].weight.mul_(0.01)  # type: ignore[operator]
                generators[2].bias.add_(torch.randn(d * d, generator=generator, dtype=torch.float64))  # type: ignore[operator]
    model.project()
    return model, graph


# ---------------------------------------------------------------------- checks


def _pairs(domain: Domain, shape: tuple[int, int], generator: torch.Generator, count: int) -> Iterator[tuple[Tensor, Tensor]]:
    for k in range(count):
        x = domain.sample(shape, generator)
        y = domain.sample(shape, generator)
        if k % 3 == 1:  # close
            y = x * (y / x) ** 1e-3 if domain.kind != "all" else x + 1e-3 * (y - x)
        elif k % 3 == 2:  # few entries
            chosen = torch.rand(shape, generator=generator) < 2.0 / max(x.numel(), 1)
            y = torch.where(chosen, y, x)
        yield x, y


def _worst_direction(model: EquilibriumModel, context: object, metric: Metric, x: Tensor) -> Tensor:
    """A state near x that differs from it by the signs of the steepest row of the Jacobian."""
    log = metric.kind == "thompson"
    weights = torch.ones_like(x) if metric.weights is None else metric.weights.expand_as(x)
    matrix = jacobian(model, x, context).to_dense()  # type: ignore[arg-type]
    scale = (x if log else torch.ones_like(x)) * weights
    with torch.no_grad():
        image = model.step(x, context) if log else torch.ones_like(x)
    rows = (matrix.abs() @ scale.reshape(-1)) / (image * weights).reshape(-1)
    signs = matrix[int(rows.argmax())].sign().view_as(x)
    return x * (1e-4 * signs * weights).exp() if log else x + 1e-4 * signs * weights


def _iterate_together(model: EquilibriumModel, graph: Graph, starts: list[Tensor], steps: int) -> list[Tensor]:
    """The states ``steps`` iterations after ``starts``, on copies of the graph side by side; sooner where nothing moves any more."""
    context = model.prepare(Graph.union([graph] * len(starts)))
    state = torch.cat(starts)
    for number in range(steps):
        image = model.step(state, context)
        if number % 16 == 15 and torch.equal(image, state):
            break
        state = image
    return list(state.chunk(len(starts)))


def check_certificate(
    certificate: Certificate, model: EquilibriumModel, graph: Graph, *, pairs: int = 12, seed: int = 0
) -> tuple[float, str | None]:
    """(largest observed ratio / rate, what contradicts the certificate or None). Float64 model and graph."""
    if certificate.verdict is Verdict.REFUTED:
        return 0.0, _check_refutation(certificate, model, graph)
    if certificate.verdict is not Verdict.CERTIFIED:
        return 0.0, None
    metric, domain, rate = certificate.metric, certificate.domain, certificate.rate
    assert metric is not None
    assert domain is not None
    assert rate is not None
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        context = model.prepare(graph)
        start = model.initial_state(context)
    shape = (start.shape[0], start.shape[1])
    worst = 0.0
    states = list(_pairs(domain, shape, generator, pairs))
    if metric.kind in ("thompson", "sup") and hasattr(model, "local_step"):
        for x, _ in states[:3]:
            y = _worst_direction(model, context, metric, x)
            if domain.kind == "box":
                assert domain.lower is not None
                assert domain.upper is not None
                y = torch.minimum(torch.maximum(y, domain.lower), domain.upper)
            states.append((x, y))
    with torch.no_grad():
        for x, y in states:
            groups = [slice(None)]
            if metric.kind == "cascade":  # one level moves, the others are held
                width = shape[1] // metric.levels
                level = int(torch.randint(0, metric.levels, (1,), generator=generator))
                groups = [slice(level * width, (level + 1) * width)]
                y = torch.cat([x[:, : groups[0].start], y[:, groups[0]], x[:, groups[0].stop :]], dim=1)
            before = metric(x, y)
            if not 1e-6 < before < math.inf:
                continue
            first, second = model.step(x, context)[:, groups[0]], model.step(y, context)[:, groups[0]]
            after = metric(first, second)
            worst = max(worst, after / before / rate)
            # large images that lie close together: what is left of their difference is rounding
            rounding = 1e-12 + metric(first, first * (1 + 64 * EPSILON))
            if not after <= rate * before * (1 + ROUNDING) + rounding:
                return worst, f"a pair at distance {before:.6g} is mapped to distance {after:.6g}, ratio {after / before:.6g}"
        starts = [domain.sample(shape, generator) for _ in range(3)] + ([start] if domain.kind != "box" else [])
        steps = min(2000, max(50, math.ceil(40 / max(1e-3, -math.log(max(rate, 1e-12))))))
        ends = _iterate_together(model, graph, starts, steps)
    plain = Metric("thompson" if metric.kind in ("thompson", "cascade") else "sup")
    for end in ends[1:]:
        gap = plain(end, ends[0])
        settled = max(plain(model.step(e, context).detach(), e) for e in (end, ends[0]))
        if gap > 1e-3 and settled < 1e-6 * gap:
            return worst, f"two starts of the domain settled at distance {gap:.6g}"
    return worst, None


def _check_refutation(certificate: Certificate, model: EquilibriumModel, graph: Graph) -> str | None:
    """The two states must be different and both must be (numerically) fixed."""
    assert certificate.witness is not None
    with torch.no_grad():
        context = model.prepare(graph)
        for state in (certificate.witness.first, certificate.witness.second):
            moved = Metric("sup")(model.step(state, context), state) / max(1.0, float(state.abs().max()))
            if not moved < 1e-8:
                return f"a witness state moves by {moved:.3g}"
    if not Metric("sup")(certificate.witness.first, certificate.witness.second) > 1e-9:
        return "the two witness states are the same"
    return None


def audit(
    draws: int,
    *,
    seed: int = 0,
    first: int = 0,
    only: type | None = None,
    with_rule: Rule | None = None,
    effort: Effort = AUDIT_EFFORT,
    progress: Callable[[int, AuditReport], None] | None = None,
) -> AuditReport:
    """Certify ``draws`` random problems, numbered from ``first``, and check every certificate that is issued."""
    report = AuditReport()
    for number in range(first, first + draws):
        model, graph = draw_problem(number, seed, only)
        certificate = certify(model.eval(), graph, effort=effort, seed=number, with_rule=with_rule)
        ratio, contradiction = check_certificate(certificate, model, graph, seed=number)
        report.draws += 1
        report.verdicts[f"{certificate.model} {certificate.verdict} ({certificate.level})"] += 1
        report.tightest = max(report.tightest, ratio)
        if contradiction is not None:
            report.violations.append(Violation(number, certificate.model, str(certificate), contradiction))
        if progress is not None:
            progress(number, report)
    return report


def wrong_sheaf_rule(problem: Problem) -> Certificate:
    """The published argument: ordinary subhomogeneity, rate mu(beta), for every SheafDEQ. Wrong, and the audit must say so."""
    model = problem.model
    assert isinstance(model, SheafDEQ)
    rate = mu(model.shift).upper
    if rate >= 1.0:
        return Certificate(Verdict.NOT_CERTIFIED, Level.NONE, problem.title, problem.place)
    return Certificate(
        Verdict.CERTIFIED,
        Level.GLOBAL,
        problem.title,
        problem.place,
        rate,
        Metric("thompson"),
        Domain("positive"),
        grounds="the published Theorem 3.2 (refuted)",
        assumptions=(Assumption("mu(beta) below 1", rate, 1.0),),
    )


def wrong_attention_rule(problem: Problem) -> Certificate:
    """Attention treated as if it did not move with the state: rate m(beta), D forgotten. Wrong, and the audit must say so."""
    model = problem.model
    assert isinstance(model, StrongAttnDEQ)
    rate = model.gate.coefficient(model.shift).upper
    return Certificate(
        Verdict.CERTIFIED,
        Level.GLOBAL,
        problem.title,
        problem.place,
        rate,
        Metric("thompson"),
        Domain("positive"),
        grounds="Theorem 24 without its D (wrong)",
        assumptions=(Assumption("m(beta) below 1", rate, 1.0),),
    )
