r"""Penalties that make a trained recurrence settle.

With z the state the model reads out, f its map, and node-wise relative changes

    r_v = |f(z)_v - z_v| / (|z_v| + eps),        s_v = |f(f(z))_v - f(z)_v| / (|f(z)_v| + eps),

the penalty of a graph union is

    residual_weight * mean_v r_v^2  +  residual_max_weight * max_v r_v^2
    +  rate_weight * mean over graphs of relu(sqrt(sum s_v^2 / (sum r_v^2 + eps)) - rate_target)^2
    +  jacobian_weight * |J|^2_F / (n c) as estimated by :func:`squared_jacobian`
    +  agreement_weight * mean_v |y_v - z_v|^2 / (|z_v|^2 + eps)
    +  row_sum_weight * mean over sampled rows i of relu(sum_j |J_ij| - row_sum_target)^2
       (:func:`sampled_row_sums`),

where y is reached by as many steps from another positive start, log-normal at a scale drawn anew
each time between 1e-3 and 1e3; z is held constant in the last term: the other start is pulled to
where the model's own start ends, not the reverse.

Evaluating f once (twice with a rate weight) more per epoch needs no access to the solver's inside,
so it serves every gradient rule. A penalty of your own is a callable ``(output, model, graph) ->
scalar tensor``.

**The Jacobian.** Let z > 0 be a state, T the map and f = log T exp the map in log coordinates, J
its Jacobian at log z. For random signs v,

    E |J v|_2^2 = sum_ij J_ij^2 = |J|_F^2        (Hutchinson),

so ``|J v|^2 / N`` is an unbiased estimate of the mean over the N coordinates of the squared 2-norm
of their rows of J. It bounds nothing by itself: it is an estimate, not an upper bound, of a
quantity that is at most (and usually far below) the mean squared absolute row sum, whose maximum
the Thompson rate is. Pressing it down presses down the local gain in every direction, where a
residual penalty only sees the direction the iteration happens to move in.

J v is taken as the difference quotient (f(log z + eps v) - f(log z)) / eps: one further evaluation
of the map, with first-order gradients only, so that it works with every kernel and model. The
quotient is exact for maps linear in log coordinates and has an error of order eps otherwise.

**Row sums.** The local rate of T in Thompson's metric is the largest absolute row sum of J, and
asynchronous iteration wants the Perron root of |J|, which is at most that, below one. A row of J is
one vector-Jacobian product; rows of nodes that read no common node can share one, so
:func:`sampled_row_sums` draws a random set of such nodes and one coordinate of each. With v the
signs of these rows, (J v)_i is the absolute sum of row i, again as a difference quotient.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel, GraphModel, Output
from sheafdeq.errors import InputError
from sheafdeq.training.config import PenaltyConfig
from sheafdeq.training.solving import random_positive_start

__all__ = ["Penalty", "SettlingPenalty", "sampled_row_sums", "squared_jacobian"]

Penalty = Callable[[Output, GraphModel, Graph], Tensor]

STEP = 1e-2
"""eps: small against the size of log states, large against single precision."""

AGREEMENT_SCALES = (1e-3, 1e3)
"""Range of the other start's scale."""


class SettlingPenalty:
    """The penalty above, with the weights of a :class:`~sheafdeq.training.config.PenaltyConfig`."""

    def __init__(self, config: PenaltyConfig) -> None:
        self.config = config

    def factor(self, epoch: int, max_epochs: int) -> float:
        """What the weights are multiplied by in the updates of an epoch (0 = the first), by
        ``ramp``."""
        if self.config.ramp is None:
            return 1.0
        begin, end = (share * max_epochs for share in self.config.ramp)
        if epoch < begin:
            return 0.0
        return 1.0 if epoch >= end else (epoch - begin) / (end - begin)

    def __call__(
        self, output: Output, model: GraphModel, graph: Graph, context: Any = None
    ) -> Tensor:
        """Scalar penalty, differentiable in the parameters. ``context`` is that of the output's
        solve: a model that draws at random when it prepares is then judged by the very map it
        solved."""
        if not isinstance(model, EquilibriumModel) or output.solution is None:
            raise InputError(
                "settling penalties need an equilibrium model, "
                f"{type(model).__name__} is feed-forward"
            )
        config = self.config
        context = model.prepare(graph) if context is None else context
        state = output.solution.value
        if config.steps is not None:
            state = model.solve(context, graph, steps=config.steps).value
        image = model.step(state, context)
        residual = _relative_change_squared(image, state)  # (n,)
        total = residual.new_zeros(())
        if config.residual_weight:
            total = total + config.residual_weight * residual.mean()
        if config.residual_max_weight:
            total = total + config.residual_max_weight * residual.max()
        if config.rate_weight:
            following = _relative_change_squared(model.step(image, context), image)
            before = _per_graph_sum(residual, graph)
            # The derivative of sqrt is unbounded at 0: a graph that has settled exactly has rate
            # sqrt(eps), slope finite.
            rate = ((_per_graph_sum(following, graph) + 1e-12) / (before + 1e-12)).sqrt()
            total = (
                total + config.rate_weight * torch.relu(rate - config.rate_target).square().mean()
            )
        if config.jacobian_weight:
            total = total + config.jacobian_weight * squared_jacobian(model, state, context, image)
        if config.agreement_weight:
            start = random_positive_start(state, AGREEMENT_SCALES)
            other = model.solve(context, graph, steps=config.steps, initial_state=start).value
            total = (
                total
                + config.agreement_weight * _relative_change_squared(other, state.detach()).mean()
            )
        if config.row_sum_weight:
            excess = torch.relu(
                sampled_row_sums(model, state, context, graph, image) - config.row_sum_target
            )
            if excess.numel():
                total = total + config.row_sum_weight * excess.square().mean()
        return total


def squared_jacobian(
    model: EquilibriumModel, state: Tensor, context: object, image: Tensor | None = None
) -> Tensor:
    """Scalar: |J v|_2^2 / (n c) for one draw of random signs v, differentiable in state and
    parameters.

    ``image`` is T(state) where it is known already. Models with positive states use log
    coordinates; for others J is the Jacobian of T itself.
    """
    image = model.step(state, context) if image is None else image
    signs = torch.randint(0, 2, state.shape, device=state.device).to(state.dtype) * 2 - 1
    if state.numel() == 0:
        return state.new_zeros(())
    if bool((state.detach() > 0).all()) and bool((image.detach() > 0).all()):
        moved = model.step(state * torch.exp(STEP * signs), context)
        change = moved.log() - image.log()
    else:
        change = model.step(state + STEP * signs, context) - image
    return (change / STEP).square().mean()


def sampled_row_sums(
    model: EquilibriumModel,
    state: Tensor,
    context: object,
    graph: Graph,
    image: Tensor | None = None,
    *,
    step: float = STEP,
) -> Tensor:
    """(k,) absolute sums of k random rows of J, no two of which read a common node; differentiable.

    ``image`` is T(state) where it is known already; log coordinates for positive states, as in
    :func:`squared_jacobian`.
    """
    image = model.step(state, context) if image is None else image
    if state.numel() == 0:
        return state.new_zeros(0)
    nodes = _independent_nodes(graph)
    columns = torch.randint(state.shape[1], (len(nodes),), device=state.device)
    positive = bool((state.detach() > 0).all()) and bool((image.detach() > 0).all())
    with torch.enable_grad():
        point = state.detach().log() if positive else state.detach().clone()
        point.requires_grad_(True)
        there = model.step(point.exp(), context).log() if positive else model.step(point, context)
        (rows,) = torch.autograd.grad(there[nodes, columns].sum(), point)
    signs = rows.sign()
    if positive:
        change = model.step(state * torch.exp(step * signs), context).log() - image.log()
    else:
        change = model.step(state + step * signs, context) - image
    return change[nodes, columns] / step


def _independent_nodes(graph: Graph) -> Tensor:
    """(k,) random nodes, as many as one round of drawing lots gives, whose closed in-neighbourhoods
    are disjoint."""
    lots = torch.randperm(graph.num_nodes, device=graph.x.device)
    # heard[j]: the highest lot among j and all who read j; a node wins if it has the highest at all
    # it reads.
    heard = lots.scatter_reduce(0, graph.source, lots[graph.target], "amax", include_self=True)
    highest = heard.scatter_reduce(0, graph.target, heard[graph.source], "amax", include_self=True)
    return (highest == lots).nonzero().flatten()


def _relative_change_squared(image: Tensor, state: Tensor) -> Tensor:
    """(n,) squared relative change of every node."""
    return (image - state).square().sum(dim=1) / (state.square().sum(dim=1) + 1e-12)


def _per_graph_sum(values: Tensor, graph: Graph) -> Tensor:
    return values.new_zeros(graph.num_graphs).index_add(0, graph.graph_ids, values)
