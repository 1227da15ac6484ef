"""Which argument encloses the equilibrium of which model.

* cascades: a verified box level by level (Theorem 39);
* models with a certified rate: residual / (1 - rate), entry by entry (Proposition 41), in log
  coordinates where states are positive, else in plain ones;
* SheafDEQ without a rate: several steps together (Theorem 42), synchronous iteration only.

A rule gets the model in float64 and a :class:`Question`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from sheafdeq.certificates import Certificate, Level, Verdict
from sheafdeq.certificates.sheaf_enclosure import SheafEnclosure
from sheafdeq.data.graph import Graph
from sheafdeq.models import SheafCascade, SheafDEQ, StrongSheafDEQ
from sheafdeq.models.appnp import APPNP
from sheafdeq.models.eignn import EIGNN
from sheafdeq.models.energy_gnn import EnergyGNN
from sheafdeq.models.ignn import IGNN
from sheafdeq.models.sheaf_relay import SheafRelay
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.predictions.contracting import log_residual, reach_by_rate
from sheafdeq.predictions.energy import energy_reach
from sheafdeq.predictions.first_order import FirstOrder
from sheafdeq.predictions.gathering import GATHERING, gathering_reach, plain_leads
from sheafdeq.predictions.lead import Lead
from sheafdeq.predictions.relay import relay_leads, relay_reach
from sheafdeq.predictions.sheared import sheared_leads, sheared_tower
from sheafdeq.predictions.strong_step import attention_image, sheaf_image
from sheafdeq.predictions.together import steps_together
from sheafdeq.predictions.tower import Tower, enclosed_tower

__all__ = ["RULES", "Enclosed", "Question", "sheared_cascade"]


@dataclass(frozen=True, eq=False)
class Enclosed:
    """What a rule hands back: the rows the readout reads, and how far they are from the truth."""

    rows: Tensor  # (n, c) the columns of the state that are read
    reach: Tensor | None  # (n, c) in log coordinates; None when nothing is enclosed
    reason: str | None
    grounds: str
    delays: bool
    weight: Tensor  # (o, c) of the readout
    bias: Tensor | None
    norm: nn.LayerNorm | None
    starts: str = "every positive start"
    levels: tuple[dict[str, float], ...] = ()
    lead: Lead | None = None  # where the rule knows more of it than the box says
    coordinates: str = "log"  # of ``reach``: log, or plain where states have any sign


@dataclass(frozen=True, eq=False)
class Question:
    """What is asked about a model; the certificate also answers for the object being the model the
    theorems speak of."""

    graph: Graph  # in float64
    state: Tensor  # to examine
    radius: float
    certificate: Certificate

    @property
    def by_rate(self) -> str:
        """The grounds where a certified rate bounds the distance."""
        return f"Proposition 41 with {self.certificate.grounds}"

    @property
    def objection(self) -> str | None:
        """Why the theorem behind a guaranteed model does not speak of this object."""
        certificate = self.certificate
        if certificate.verdict is Verdict.CERTIFIED and certificate.level is Level.GLOBAL:
            return None
        return f"convergence is not certified: {certificate.reason or certificate.verdict}"


def _read(
    output: Any,
    rows: Tensor,
    reach: Tensor | None,
    reason: str | None,
    grounds: str,
    delays: bool,
    starts: str = "every positive start",
) -> Enclosed:
    """With a linear readout of the state itself."""
    bias = None if output.bias is None else output.bias.detach()
    weight = output.weight.detach()
    return Enclosed(rows, reach, reason, grounds, delays, weight, bias, None, starts)


def cascade(model: SheafCascade, asked: Question) -> Enclosed:
    """Theorem 39, level by level."""
    objection = asked.objection
    tower = None if objection else enclosed_tower(model, asked.graph, asked.state, asked.radius)
    grounds = "Theorem 39 (a verified box level by level) and Theorem 23 (one equilibrium)"
    return _of_tower(model, asked.state, tower, objection, grounds)


def sheared_cascade(model: SheafCascade, asked: Question, first: FirstOrder) -> Enclosed:
    """Theorem 43: boxes sheared along the first order."""
    objection = asked.objection
    found = None if objection else sheared_tower(model, asked.graph, first, asked.radius)
    grounds = "Theorem 43 (sheared boxes level by level) and Theorem 23 (one equilibrium)"
    tower = found.tower if found else None
    enclosed = _of_tower(model, asked.state, tower, objection, grounds)
    if found is None or enclosed.reach is None or enclosed.norm is None or enclosed.bias is None:
        return enclosed
    readout = (enclosed.weight, enclosed.bias, enclosed.norm)
    try:
        lead = sheared_leads(enclosed.rows, found, first, asked.radius, *readout)
    except ArithmeticError as error:
        return replace(enclosed, reach=None, reason=f"readout: {error} (coupling)")
    return replace(enclosed, lead=lead)


def _of_tower(
    model: SheafCascade, state: Tensor, tower: Tower | None, objection: str | None, grounds: str
) -> Enclosed:
    levels = tuple(
        {
            "residual": bound.residual,
            "rate": bound.rate,
            "gain": bound.gain,
            "bound": float(bound.reach.max()),
            "median bound": float(bound.reach.median()),
        }
        for bound in (tower.levels if tower else ())
    )
    output: Any = model.output
    return Enclosed(
        state[:, -model.width :].contiguous(),
        tower.top if tower else None,
        tower.reason if tower else objection,
        grounds,
        True,
        output.weight.detach(),
        output.bias.detach(),
        model.readout_norm,
        levels=levels,
    )


@torch.no_grad()
def strong(model: Any, asked: Question) -> Enclosed:
    """Proposition 41 with the rate that Theorem 22 or 24 gives for every input."""
    graph, state, grounds, objection = asked.graph, asked.state, asked.by_rate, asked.objection
    if objection is not None:
        return _read(model.readout, state, None, objection, grounds, True)
    rate = asked.certificate.rate
    assert rate is not None
    image_of: Any = sheaf_image if isinstance(model, StrongSheafDEQ) else attention_image
    try:
        image = image_of(model, model.prepare(graph), graph, state, asked.radius)
    except ArithmeticError as error:
        return _read(model.readout, state, None, f"{error} (coupling)", grounds, True)
    reach = reach_by_rate(log_residual(image, state), rate)
    return _read(model.readout, state, reach, None, grounds, True)


@torch.no_grad()
def sheaf_deq(model: SheafDEQ, asked: Question) -> Enclosed:
    """Proposition 41 where a rate is certified, else several steps together (Theorem 42)."""
    graph, state, certificate = asked.graph, asked.state, asked.certificate
    if asked.radius > 0:
        reason = "the rate of a SheafDEQ is proved for the stored features alone (rate)"
        return _read(model.readout, state, None, reason, "nothing", False)
    metric, domain, rate = certificate.metric, certificate.domain, certificate.rate
    if certificate.verdict is Verdict.CERTIFIED and metric is not None and domain is not None:
        inside = domain.kind == "positive" or (
            domain.lower is not None
            and domain.upper is not None
            and bool(((domain.lower <= state) & (state <= domain.upper)).all())
        )
        if metric.kind == "thompson" and inside and rate is not None:
            enclosure = SheafEnclosure(model, model.prepare(graph))
            image = enclosure.image(state.log(), torch.full_like(state, 1e-15))
            reach = reach_by_rate(log_residual(image, state), rate, metric.weights)
            starts = (
                "every start within the proved ball"
                if certificate.level is Level.BALL
                else "every positive start"
            )
            delays = certificate.delays
            return _read(model.readout, state, reach, None, asked.by_rate, delays, starts)
    found = steps_together(model, model.prepare(graph), state)
    grounds = (
        f"Theorem 42 ({found.steps} steps together, rate {found.rate:.4g} a step in an adapted "
        "norm)"
    )
    near = found.radius / max(found.factor, 1.0)
    starts = f"every start within {near:.2g} (log of an entry) of the state"
    return _read(model.readout, state, found.reach, found.reason, grounds, False, starts)


@torch.no_grad()
def gathering(model: Any, asked: Question) -> Enclosed:
    """Proposition 41 in plain coordinates, with the rates of Propositions 32 to 35."""
    graph, state, grounds = asked.graph, asked.state, asked.by_rate
    output = model.readout if isinstance(model, APPNP) else model.linear_readout
    starts = "every start"
    found: Tensor | str | None = asked.objection
    if found is None:
        try:
            found = gathering_reach(model, graph, state, asked.radius, asked.certificate)
        except ArithmeticError as error:
            found = f"{error} (coupling)"
    if isinstance(found, str):
        return _read(output, state, None, found, grounds, True, starts)
    unit_rows = isinstance(model, IGNN) or (isinstance(model, EIGNN) and model.normalise)
    weight, bias = output.weight.detach(), output.bias.detach()
    lead = plain_leads(state, found, weight, bias, unit_rows=unit_rows)
    enclosed = _read(output, state, found, None, grounds, asked.certificate.delays, starts)
    return replace(enclosed, lead=lead, coordinates="plain")


@torch.no_grad()
def relay(model: SheafRelay, asked: Question) -> Enclosed:
    """Proposition 41 in plain coordinates, with the rate of Theorem 38."""
    state, certificate, reason = asked.state, asked.certificate, asked.objection
    if reason is None and asked.radius > 0:
        reason = "the rate of a SheafRelay is proved for the stored features alone (rate)"
    if reason is not None:
        return _read(model.output, state, None, reason, asked.by_rate, True, "every start")
    context: Any = model.prepare(asked.graph)
    reach = relay_reach(model, context, state, certificate)
    lead = relay_leads(model, context, state, reach)
    delays = certificate.delays
    enclosed = _read(model.output, state, reach, None, asked.by_rate, delays, "every start")
    return replace(enclosed, lead=lead, coordinates="plain")


@torch.no_grad()
def energy(model: EnergyGNN, asked: Question) -> Enclosed:
    """Proposition 36(b): strong convexity bounds the distance to the minimiser."""
    grounds = "Proposition 36(b) (strong convexity)"
    graph, state, reason = asked.graph, asked.state, asked.objection
    if reason is not None:
        return _read(model.readout, state, None, reason, grounds, False, "every start")
    reach = energy_reach(model, model.prepare(graph), graph, state, asked.radius)
    weight, bias = model.readout.weight.detach(), model.readout.bias.detach()
    lead = plain_leads(state, reach, weight, bias, unit_rows=False)
    enclosed = _read(model.readout, state, reach, None, grounds, False, "every start")
    return replace(enclosed, lead=lead, coordinates="plain")


Rule = Callable[[Any, Question], Enclosed]
RULES: dict[type, Rule] = {
    SheafCascade: cascade,
    StrongSheafDEQ: strong,
    StrongAttnDEQ: strong,
    SheafDEQ: sheaf_deq,
    SheafRelay: relay,
    EnergyGNN: energy,
    **dict.fromkeys(GATHERING, gathering),
}
"""By exact type: a subclass may compute something else."""
