r"""The rule for :class:`~sheafdeq.models.sheaf_relay.SheafRelay` (Theorem 38), from the context's
own numbers.

The map is affine, m -> F (gathered m) + B, so |J| is known: row e of |J| w is |F_e| times the
gathered w. Weights

    w <- 1 + |J| w / r,          r between the core's rate and one,

grow along every path that does not turn back and stop growing, because |J| is nilpotent outside the
core and contracts inside it. What is proved does not depend on how w was found: |J| w <= r w is
checked entry by entry with rounding outward.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from sheafdeq.certificates.certificate import Assumption, Certificate, Domain, Level, Metric
from sheafdeq.certificates.examine import examine
from sheafdeq.certificates.interval import scaled_up
from sheafdeq.certificates.problem import Problem
from sheafdeq.certificates.rule import rule
from sheafdeq.certificates.rules.pieces import PLAIN, certified
from sheafdeq.models.sheaf_relay import RelayContext, SheafRelay

__all__ = ["gathering_depth", "sheaf_relay"]

ROUNDS = 100_000
"""Rounds of the growing weights before giving up; a path of so many edges is longer than any solve
here."""


@rule(SheafRelay, proof="Theorem 38", modules=PLAIN)
@torch.no_grad()
def sheaf_relay(problem: Problem) -> Certificate:
    """Theorem 38: a weighted sup norm in which the map contracts, or why none was found."""
    model, context = problem.model, problem.context
    assert isinstance(model, SheafRelay)
    assert isinstance(context, RelayContext)
    if problem.graph.num_nodes == 0:
        return examine(problem)
    rate = (1.0 + model.core_rate) / 2.0
    linear = replace(
        context, transport=context.transport.abs(), origin=torch.zeros_like(context.origin)
    )
    weights = _weights(model, linear, rate)
    if weights is None:
        found = examine(problem)
        return replace(found, reason=f"no weights with |J| w <= {rate:.4g} w were found in float64")
    # A product of d + D nonnegative terms, each within half a unit in the last place.
    image = scaled_up(model.step(weights, linear), model.stalk_dim + context.slots + 4)
    reached = float(scaled_up(image / weights, 2).max())
    if not reached < 1.0:
        found = examine(problem)
        return replace(
            found, reason=f"the largest quotient |J| w / w is {reached:.6g}, not below 1"
        )
    depth = gathering_depth(context)
    proved = {} if depth is None else {"steps to the exact equilibrium, from every start": depth}
    certificate = certified(
        problem,
        Level.GLOBAL,
        reached,
        Metric("sup", weights / weights.min()),
        Domain("all"),
        "Theorem 38" + ("(c)" if depth is not None else "(b)"),
        (Assumption("largest quotient |J| w / w below 1", reached, 1.0),),
    )
    return replace(certificate, proved=proved)


def _weights(model: SheafRelay, linear: RelayContext, rate: float) -> Tensor | None:
    """(n, D*c) positive weights that have stopped growing, or None."""
    weights = torch.ones_like(model.initial_state(linear))
    for _ in range(ROUNDS):
        grown = 1.0 + model.step(weights, linear) / rate
        if not bool(torch.isfinite(grown).all()):
            return None
        if bool((grown <= weights * (1.0 + 1e-6)).all()):
            return grown
        weights = grown
    return None


def gathering_depth(context: RelayContext) -> int | None:
    """Edges of the longest chain of gathering, which is the number of steps to the equilibrium;
    None when it closes on itself.

    Places that nothing gathers are settled after one step; a message is settled one step after all
    it gathers.
    """
    edges, slots = context.edges, context.slots
    place = edges.target * slots + context.slot
    unsettled = torch.zeros(edges.num_targets * slots, dtype=context.heard.dtype)
    unsettled[place] = 1.0
    carries = (edges.source != edges.target).to(unsettled)
    for step in range(len(place) + 1):
        if not bool(unsettled.any()):
            return step
        rows = unsettled.view(-1, slots)[edges.source]
        waiting = ((context.heard * rows).sum(1) > 0).to(unsettled) * carries
        following = torch.zeros_like(unsettled).index_copy(0, place, waiting)
        if torch.equal(following, unsettled):
            return None
        unsettled = following
    return None
