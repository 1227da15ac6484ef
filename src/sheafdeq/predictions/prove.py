"""``certify_predictions``: which labels of a model on a graph are proved.

One rule for each model type, as for convergence certificates. A rule gets a state refined in
float64 and encloses the equilibrium near it; labels follow (:mod:`.lead`).
"""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sheafdeq.certificates import Certificate, certify, use_labels
from sheafdeq.certificates.rule import registered_rule
from sheafdeq.data.graph import AnyGraph, Graph
from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError
from sheafdeq.layers.feature_encoder import FeatureEncoder
from sheafdeq.layers.masked_readout import MaskedReadout
from sheafdeq.models import SheafCascade
from sheafdeq.models.energy_gnn import EnergyGNN
from sheafdeq.models.sheaf_relay import SheafRelay
from sheafdeq.predictions.first_order import FirstOrder, first_order
from sheafdeq.predictions.gathering import GATHERING
from sheafdeq.predictions.lead import leads
from sheafdeq.predictions.predictions import Predictions
from sheafdeq.predictions.rules import RULES, Enclosed, Question, sheared_cascade
from sheafdeq.solvers import Picard

__all__ = ["FORMS", "Prover", "certify_predictions", "refined"]

REFINEMENT = Picard(steps=2000, tolerance=4e-15, stop_early=True)
"""How a state is refined before it is examined; whatever it reaches, the bound is proved."""
FORMS = ("boxes", "sheared")
SIGNED = (*GATHERING, EnergyGNN, SheafRelay)
"""States of these models have any sign."""
TIE = 1e-9
"""Leads below this share of the largest logit are called ties when they are not proved."""


@dataclass(frozen=True)
class _Clock:
    """When a proof began, by the wall and by the processor."""

    wall: float
    processor: float

    def passed(self) -> tuple[float, float]:
        """Seconds since, both ways."""
        return time.perf_counter() - self.wall, time.process_time() - self.processor


class Prover:
    """One model on one graph, at one state: everything that serves all radii is made once.

    Args: as :func:`certify_predictions`.
    """

    def __init__(
        self,
        model: EquilibriumModel,
        graph: AnyGraph,
        *,
        state: Tensor | None = None,
        form: str = "boxes",
        certificate: Certificate | None = None,
    ) -> None:
        if not isinstance(model, EquilibriumModel):
            raise InputError(
                f"{type(model).__name__} has no equilibrium, so its labels have no proof"
            )
        if form not in FORMS:
            raise InputError(f"unknown form {form!r}: choose one of {', '.join(FORMS)}")
        model = copy.deepcopy(model).to("cpu", torch.float64).eval()
        graph = Graph.of(graph).to("cpu", torch.float64)
        model.check(graph)
        if model.out_channels < 2:
            raise InputError(
                f"the model has {model.out_channels} output: labels need one output for each class"
            )
        self.model, self.graph, self.form = model, graph, form
        self._certificate = certificate
        self.state = refined(model, graph) if state is None else _checked(state, model, graph)

    def at(self, radius: float = 0.0) -> Predictions:
        """Which labels are proved for all features within ``radius``."""
        if not (math.isfinite(radius) and radius >= 0):
            raise InputError(f"radius must be a finite number, 0 or more, got {radius!r}")
        started = _Clock(time.perf_counter(), time.process_time())
        model, graph, state = self.model, self.graph, self.state
        rule = RULES.get(type(model))
        if graph.num_nodes == 0:
            return _nothing(model, graph, radius, state, "a graph without nodes", started)
        if rule is None:
            known = ", ".join(kind.__name__ for kind in RULES)
            reason = f"no enclosure is known for {type(model).__name__} (known: {known})"
            return _nothing(model, graph, radius, state, reason, started)
        unread = _unread(model, graph)
        if unread is not None:
            return _nothing(model, graph, radius, state, unread, started)
        asked = Question(graph, state, radius, self.certificate)
        if "readout" in vars(model):
            reason = "'readout' was replaced on this object"
            return _nothing(model, graph, radius, state, reason, started)
        if self.form == "sheared" and radius > 0 and isinstance(model, SheafCascade):
            enclosed = sheared_cascade(model, asked, self.first)
        else:
            enclosed = rule(model, asked)
        return _judged(model, graph, radius, state, enclosed, started)

    @property
    def certificate(self) -> Certificate:
        """The convergence certificate, which the rules rest on."""
        if self._certificate is None:
            self._certificate = certify(
                self.model, self.graph, equilibrium=self.state, effort="quick"
            )
        return self._certificate

    @cached_property
    def first(self) -> FirstOrder:
        """How the equilibrium moves with the features (cascades only); minutes for 1,500 nodes."""
        assert isinstance(self.model, SheafCascade)
        return first_order(self.model, self.graph, self.state)


def certify_predictions(
    model: EquilibriumModel,
    graph: AnyGraph,
    *,
    radius: float = 0.0,
    state: Tensor | None = None,
    form: str = "boxes",
) -> Predictions:
    """Which labels are proved, for the stored features or for all within ``radius`` of them.

    Args:
        model: a model with a rule (:data:`.rules.RULES`); others answer why nothing is enclosed.
        graph: the graph; model and graph are copied to float64 first.
        radius: R >= 0, in the maximum norm over all node features at once.
        state: a state to examine (n, columns); by default one is iterated to rest in float64.
        form: ``"boxes"`` (absolute values are taken once a level) or, for a radius of a cascade,
            ``"sheared"`` (first order exactly, Theorem 43): larger radii, for
            minutes and n^2 c f numbers of memory. :class:`Prover` shares them between radii.
    """
    return Prover(model, graph, state=state, form=form).at(radius)


@use_labels
def _labels(certificate: Certificate) -> Predictions:
    """``certify(...).predictions``: the certificate at hand is the one the rules rest on."""
    subject = certificate.subject
    assert subject is not None
    model, graph, state = subject.model, subject.graph, subject.equilibrium
    return Prover(model, graph, state=state, certificate=certificate).at(0.0)


def _unread(model: EquilibriumModel, graph: Graph) -> str | None:
    """What has no enclosure: an object that was changed, weights of edges, or what stands before
    or after the iteration. None without."""
    known = registered_rule(type(model))
    objection = None if known is None else known.scope.objection(model)
    if objection is not None:
        return objection
    if graph.edges.share is not None:
        return "the graph has an edge_weight, for which there is no enclosure"
    inputs = getattr(model, "inputs", None)
    if isinstance(inputs, FeatureEncoder) and (len(inputs.layers) or inputs.harmonics):
        return "the features pass an encoder or harmonics, for which there is no enclosure"
    for part in (getattr(model, "readout", None), getattr(model, "output", None)):
        if isinstance(part, MaskedReadout) and not part.plain:
            return "the readout has a norm or a skip, for which there is no enclosure"
    return None


@torch.no_grad()
def refined(model: EquilibriumModel, graph: Graph) -> Tensor:
    """The state that float64 iteration reaches."""
    context = model.prepare(graph)
    return model.solve_to_equilibrium(context, graph, REFINEMENT).value


def _checked(state: Tensor, model: EquilibriumModel, graph: Graph) -> Tensor:
    with torch.no_grad():
        start = model.initial_state(model.prepare(graph))
    state = state.detach().to("cpu", torch.float64)
    if state.shape != start.shape:
        raise InputError(f"the state must be {tuple(start.shape)}, got {tuple(state.shape)}")
    signed = isinstance(model, SIGNED)
    if not bool(torch.isfinite(state).all()) or not (signed or bool((state > 0).all())):
        wanted = "finite" if signed else "finite and positive"
        raise InputError(f"the state must be {wanted} in every entry")
    return state


def _nothing(
    model: EquilibriumModel,
    graph: Graph,
    radius: float,
    state: Tensor,
    reason: str,
    started: _Clock,
) -> Predictions:
    with torch.no_grad():
        logits = model.readout(state, model.prepare(graph))  # type: ignore[operator]
    n = len(logits)
    top = logits.topk(2, 1).values
    return Predictions(
        type(model).__name__,
        repr(graph),
        radius,
        logits.argmax(1),
        torch.zeros(n, dtype=torch.bool),
        logits.new_full((n,), torch.nan),
        top[:, 0] - top[:, 1],
        logits.new_full((n,), torch.inf),
        (f"{_kind(reason)}: {reason}",) * n,
        "nothing",
        reason,
        False,
        "",
        (),
        state,
        None,
        *started.passed(),
    )


def _kind(reason: str) -> str:
    """rate or coupling, where the reason says so."""
    return next((word for word in ("rate", "coupling") if f"({word})" in reason), "no enclosure")


def _judged(
    model: EquilibriumModel,
    graph: Graph,
    radius: float,
    state: Tensor,
    enclosed: Enclosed,
    started: _Clock,
) -> Predictions:
    if enclosed.reach is None:
        reason = enclosed.reason or "no enclosure was found"
        return _nothing(model, graph, radius, state, reason, started)
    try:
        lead = enclosed.lead or leads(
            enclosed.rows, enclosed.reach, enclosed.weight, enclosed.bias, enclosed.norm
        )
    except ArithmeticError as error:
        return _nothing(model, graph, radius, state, f"readout: {error} (coupling)", started)
    proved = lead.least > 0
    distance = enclosed.reach.amax(1) if enclosed.reach.numel() else enclosed.reach.sum(1)
    scale = lead.size.clamp(min=1e-12) * TIE
    why = []
    for i in range(len(proved)):
        if bool(proved[i]):
            why.append("")
        elif float(lead.at_centre[i]) <= float(scale[i]):
            why.append(f"tie: two labels are within {float(scale[i]):.1g} of each other")
        else:
            lost = float(lead.at_centre[i] - lead.least[i])
            why.append(
                f"coupling: a lead of {float(lead.at_centre[i]):.3g} against an uncertainty of "
                f"{lost:.3g}"
            )
    return Predictions(
        type(model).__name__,
        repr(graph),
        radius,
        lead.label,
        proved,
        lead.least,
        lead.at_centre,
        distance,
        tuple(why),
        enclosed.grounds,
        None,
        enclosed.delays,
        enclosed.starts,
        enclosed.levels,
        state,
        enclosed.reach,
        *started.passed(),
        enclosed.coordinates,
    )
