"""What would contradict a certificate, looked for in the model itself: claimed against observed.

* Pairs of states of the certified domain are mapped; the ratio  d(T(x), T(y)) / d(x, y)  must not
  exceed the rate. Pairs are random, close, or differ in few entries (where signs cannot cancel);
  they follow the signs of the steepest row of the Jacobian; and gradient ascent on the ratio moves
  both states of a pair to where the claim is weakest (:func:`ascend`).
* Starts of the domain must end as close together as their residuals and the rate ask, and a
  certified box that every start enters must contain where they end.
* The two states of a refutation must be fixed and different.

The claim is about exact arithmetic; what float64 does not resolve is measured at every pair (the
image of a state moved by its last bits) and is no contradiction.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from sheafdeq.certificates.certificate import Certificate, Domain, Metric, Verdict
from sheafdeq.certificates.interval import EPSILON
from sheafdeq.certificates.jacobian import jacobian
from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel

__all__ = ["ascend", "check_certificate"]

PAIRS, CLIMBS = 12, 2
"""Pairs of states that are tried, and how many of them are improved by gradient ascent."""
ROUNDING = 1e-7
"""An observed ratio above rate * (1 + this), and above what rounding can do, is a violation;
distances below 1e-6 are not used (their ratios are rounding)."""
NOISE = 1e-9
"""A pair whose images move by more than this when the state moves by its last bit is not resolved
by float64, and not used."""
LOG_RANGE = 12.0
"""States of an unbounded positive domain are tried between e^-12 and e^12."""


# ---------------------------------------------------------------------- pairs


def _pairs(
    domain: Domain, shape: tuple[int, int], generator: torch.Generator, count: int
) -> Iterator[tuple[Tensor, Tensor]]:
    for k in range(count):
        x = domain.sample(shape, generator)
        y = domain.sample(shape, generator)
        if k % 3 == 1:  # close
            y = x * (y / x) ** 1e-3 if domain.kind != "all" else x + 1e-3 * (y - x)
        elif k % 3 == 2:  # few entries
            chosen = torch.rand(shape, generator=generator) < 2.0 / max(x.numel(), 1)
            y = torch.where(chosen, y, x)
        yield x, y


def _clamped(domain: Domain, x: Tensor) -> Tensor:
    if domain.kind == "box":
        assert domain.lower is not None
        assert domain.upper is not None
        return torch.minimum(torch.maximum(x, domain.lower), domain.upper)
    return x.clamp(math.exp(-LOG_RANGE), math.exp(LOG_RANGE)) if domain.kind == "positive" else x


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


def ascend(
    model: EquilibriumModel,
    context: Any,
    metric: Metric,
    domain: Domain,
    pair: tuple[Tensor, Tensor],
    columns: slice = slice(None),
    *,
    steps: int = 16,
    rate: float = 0.1,
) -> tuple[Tensor, Tensor]:
    """The pair after gradient ascent on  log d(T(x), T(y)) - log d(x, y),  kept in the domain; the
    best pair that was met.

    Only ``columns`` of the second state move away from the first (the certified metric of a cascade
    holds the other levels equal).
    """
    log = domain.kind != "all"
    x, y = (_clamped(domain, state) for state in pair)
    away = torch.zeros_like(x)
    away[:, columns] = 1.0
    u, v = ((state.log() if log else state).clone().requires_grad_() for state in (x, y))
    # of a step: plain states have a scale of their own
    length = rate * (1.0 if log else float((x - y).abs().max()))
    best, found = -math.inf, pair
    for _ in range(steps):
        with torch.enable_grad():
            first = _clamped(domain, u.exp() if log else u)
            second = torch.where(away > 0, _clamped(domain, v.exp() if log else v), first)
            before = _distance(metric, first, second)
            after = _distance(
                metric,
                model.step(first, context)[:, columns],
                model.step(second, context)[:, columns],
                columns,
            )
            objective = after.log() - before.log()
        value = float(objective.detach())
        if not math.isfinite(value) or not float(before.detach()) > 1e-5:
            break
        if value > best:
            best, found = value, (first.detach().clone(), second.detach().clone())
        gradients = torch.autograd.grad(objective, (u, v), allow_unused=True)
        if any(g is None or not bool(torch.isfinite(g).all()) for g in gradients):
            break
        with torch.no_grad():
            for variable, gradient in zip((u, v), gradients, strict=True):
                variable += length * gradient / gradient.abs().max().clamp(min=1e-300)
    return found


def _distance(metric: Metric, x: Tensor, y: Tensor, columns: slice = slice(None)) -> Tensor:
    """The metric as a differentiable scalar."""
    difference = x.log() - y.log() if metric.kind in ("thompson", "cascade") else x - y
    if metric.kind == "euclidean":
        result: Tensor = torch.linalg.vector_norm(difference)
        return result
    if metric.kind == "block":
        difference = torch.linalg.vector_norm(difference + 1e-300, dim=1, keepdim=True)
    weights = metric.weights
    if weights is not None:
        difference = difference / (weights if weights.shape[1] == 1 else weights[:, columns])
    return difference.abs().max()


# ---------------------------------------------------------------------- the check


def check_certificate(
    certificate: Certificate,
    model: EquilibriumModel,
    graph: Graph,
    *,
    seed: int = 0,
    settle: bool = True,
) -> tuple[float, str | None]:
    """(largest observed ratio / rate, what contradicts the certificate or None). Float64 model and
    graph.

    Some pairs are improved by gradient ascent; ``settle`` iterates starts to their ends.
    """
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
    if start.numel() == 0:
        return 0.0, None
    shape = (start.shape[0], start.shape[1])
    if domain.kind == "box" and not _is_box(domain):
        return 0.0, "the certified box is empty, or not of positive finite states"
    worst = 0.0
    for x, y, columns in _tried(model, context, metric, domain, shape, generator):
        with torch.no_grad():
            before = metric(x, y)
            if not 1e-6 < before < math.inf:
                continue
            first, second = model.step(x, context)[:, columns], model.step(y, context)[:, columns]
            noise = max(_noise(model, context, metric, state, columns) for state in (x, y))
            after = metric(first, second)
            if not math.isfinite(after) or not noise < NOISE:
                continue
            # large images that lie close together: what is left of their difference is rounding
            rounding = 1e-12 + 8 * noise + metric(first, first * (1 + 64 * EPSILON))
            if after > rate * before + rounding:  # before anything is accused: weights round too
                rounding += 8 * _weight_noise(model, graph, metric, (x, y), columns)
            worst = max(worst, (after - rounding) / before / max(rate, 1e-300))
            if not after <= rate * before * (1 + ROUNDING) + rounding:
                return worst, (
                    f"a pair at distance {before:.6g} is mapped to distance "
                    f"{after:.6g}, ratio {after / before:.6g}"
                )
    return worst, _check_ends(
        certificate, model, graph, context, start, generator
    ) if settle else None


def _noise(
    model: EquilibriumModel, context: Any, metric: Metric, state: Tensor, columns: slice
) -> float:
    """How far the image moves when the last bit of the state does: what rounding alone can do."""
    image = model.step(state, context)[:, columns]
    return max(
        metric(image, model.step(_nudged(state, flipped), context)[:, columns])
        for flipped in (False, True)
    )


def _weight_noise(
    model: EquilibriumModel,
    graph: Graph,
    metric: Metric,
    states: tuple[Tensor, Tensor],
    columns: slice,
) -> float:
    """The same for the last bit of every weight: digits that cancel between two weights are lost
    whatever the state is (a map of one entry is a sign, and may flip)."""
    context = model.prepare(graph)
    images = [model.step(state, context)[:, columns] for state in states]
    worst = 0.0
    for flipped in (False, True):
        other = copy.deepcopy(model)
        for parameter in other.parameters():
            parameter.copy_(_nudged(parameter, flipped))
        moved = other.prepare(graph)
        for image, state in zip(images, states, strict=True):
            worst = max(worst, metric(image, other.step(state, moved)[:, columns]))
    return worst


def _nudged(values: Tensor, flipped: bool) -> Tensor:
    """Two units in the last place, entry by entry up or down.

    All entries in one direction would not show it: a homogeneous map then cancels the same digits
    again.
    """
    count = torch.arange(values.numel(), dtype=torch.int64)
    up = (((count * 2654435761) >> 16) % 2 == 0).view_as(values) ^ flipped
    return torch.where(up, values * (1 + 2 * EPSILON), values * (1 - 2 * EPSILON))


def _is_box(domain: Domain) -> bool:
    assert domain.lower is not None
    assert domain.upper is not None
    ends = (
        torch.isfinite(domain.lower)
        & torch.isfinite(domain.upper)
        & (domain.lower > 0)
        & (domain.lower <= domain.upper)
    )
    return bool(ends.all())


def _tried(
    model: EquilibriumModel,
    context: Any,
    metric: Metric,
    domain: Domain,
    shape: tuple[int, int],
    generator: torch.Generator,
) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """Pairs of states, and the columns in which they differ."""
    for k, (x, y) in enumerate(_pairs(domain, shape, generator, PAIRS)):
        columns = slice(None)
        if metric.kind == "cascade":  # one level moves, the others are held
            width = shape[1] // metric.levels
            level = int(torch.randint(0, metric.levels, (1,), generator=generator))
            columns = slice(level * width, (level + 1) * width)
            y = torch.cat([x[:, : columns.start], y[:, columns], x[:, columns.stop :]], dim=1)
        yield x, y, columns
        local = metric.kind in ("thompson", "sup") and hasattr(model, "local_step")
        if local and k < 3:
            yield x, _clamped(domain, _worst_direction(model, context, metric, x)), columns
        if k < CLIMBS:
            x, y = ascend(model, context, metric, domain, (x, y), columns)
            yield x, y, columns
            if local:
                yield x, _clamped(domain, _worst_direction(model, context, metric, x)), columns


def _iterate_together(
    model: EquilibriumModel, graph: Graph, starts: list[Tensor], steps: int
) -> list[Tensor]:
    """The states ``steps`` iterations after ``starts``, on copies of the graph side by side; sooner
    where nothing moves any more."""
    context = model.prepare(Graph.union([graph] * len(starts)))
    state = torch.cat(starts)
    for number in range(steps):
        image = model.step(state, context)
        if number % 16 == 15 and torch.equal(image, state):
            break
        state = image
    return list(state.chunk(len(starts)))


@torch.no_grad()
def _check_ends(
    certificate: Certificate,
    model: EquilibriumModel,
    graph: Graph,
    context: Any,
    start: Tensor,
    generator: torch.Generator,
) -> str | None:
    """Starts of the domain must end at one state; a box that every start enters must contain where
    they end."""
    metric, domain, rate = certificate.metric, certificate.domain, certificate.rate
    assert metric is not None
    assert domain is not None
    assert rate is not None
    shape = (start.shape[0], start.shape[1])
    everywhere = domain.kind != "box" or domain.enters_after is not None
    starts = [domain.sample(shape, generator) for _ in range(3)] + ([start] if everywhere else [])
    steps = min(2000, max(50, math.ceil(40 / max(1e-3, -math.log(max(rate, 1e-12))))))
    ends = _iterate_together(model, graph, starts, steps)
    plain = Metric("thompson" if metric.kind in ("thompson", "cascade") else "sup")
    # A rate r allows two states of residuals a and b a distance of at most (a + b) / (1 - r);
    # jointly a cascade's metric is another.
    judge, slack = (plain, 1e-6) if metric.kind == "cascade" else (metric, 1.0)
    for end in ends[1:]:
        gap = judge(end, ends[0])
        residuals = sum(judge(model.step(e, context), e) for e in (end, ends[0]))
        if gap > 1e-3 and residuals + 1e-13 * (1 + gap) < slack * (1.0 - rate) * gap * (
            1 - ROUNDING
        ):
            return (
                f"two starts of the domain ended at distance {gap:.6g} with residuals "
                f"{residuals:.3g} in all"
            )
    if domain.kind == "box":
        assert domain.lower is not None
        assert domain.upper is not None
        outside = torch.maximum(domain.lower / ends[-1], ends[-1] / domain.upper).max()
        if (
            plain(model.step(ends[-1], context), ends[-1]) < 1e-13
            and float(outside) > 1 + 4 * EPSILON
        ):
            return (
                "the equilibrium lies outside the certified box, by the factor 1 + "
                f"{float(outside) - 1:.3g}"
            )
    return None


def _check_refutation(
    certificate: Certificate, model: EquilibriumModel, graph: Graph
) -> str | None:
    """The two states must be different and both must be (numerically) fixed."""
    assert certificate.witness is not None
    with torch.no_grad():
        context = model.prepare(graph)
        for state in (certificate.witness.first, certificate.witness.second):
            moved = Metric("sup")(model.step(state, context), state) / max(
                1.0, float(state.abs().max())
            )
            if not moved < 1e-8:
                return f"a witness state moves by {moved:.3g}"
    if not Metric("sup")(certificate.witness.first, certificate.witness.second) > 1e-9:
        return "the two witness states are the same"
    return None
