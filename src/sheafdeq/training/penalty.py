r"""Penalties that make a trained recurrence settle.

With z the state the model reads out, f its map, and node-wise relative changes

    r_v = |f(z)_v - z_v| / (|z_v| + eps),        s_v = |f(f(z))_v - f(z)_v| / (|f(z)_v| + eps),

the penalty of a graph union is

    residual_weight * mean_v r_v^2  +  residual_max_weight * max_v r_v^2
    +  rate_weight * mean over graphs of relu(sqrt(sum s_v^2 / (sum r_v^2 + eps)) - rate_target)^2
    +  jacobian_weight * |J|^2_F / (n c) as estimated by :func:`sheafdeq.training.penalties.squared_jacobian`
    +  agreement_weight * mean_v |y_v - z_v|^2 / (|z_v|^2 + eps),

where y is reached by as many steps from another positive start, log-normal at a scale drawn anew each time between 1e-3 and 1e3;
z is held constant in the last term: the other start is pulled to where the model's own start ends, not the reverse.

Evaluating f once (twice with a rate weight) more per epoch needs no access to the solver's inside, so it serves every
gradient rule. A penalty of your own is a callable ``(output, model, graph) -> scalar tensor``.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from sheafdeq.data.graph import Graph
from sheafdeq.equilibrium import EquilibriumModel, GraphModel, Output
from sheafdeq.errors import InputError
from sheafdeq.training.config import PenaltyConfig
from sheafdeq.training.penalties import squared_jacobian

__all__ = ["Penalty", "SettlingPenalty"]

Penalty = Callable[[Output, GraphModel, Graph], Tensor]


class SettlingPenalty:
    """The penalty above, with the weights of a :class:`~sheafdeq.training.config.PenaltyConfig`."""

    def __init__(self, config: PenaltyConfig) -> None:
        self.config = config

    def __call__(self, output: Output, model: GraphModel, graph: Graph) -> Tensor:
        """Scalar penalty, differentiable in the parameters."""
        if not isinstance(model, EquilibriumModel) or output.solution is None:
            raise InputError(f"settling penalties need an equilibrium model, {type(model).__name__} is feed-forward")
        config = self.config
        context = model.prepare(graph)
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
            # The derivative of sqrt is unbounded at 0: a graph that has settled exactly has rate sqrt(eps), slope finite.
            rate = ((_per_graph_sum(following, graph) + 1e-12) / (before + 1e-12)).sqrt()
            total = total + config.rate_weight * torch.relu(rate - config.rate_target).square().mean()
        if config.jacobian_weight:
            total = total + config.jacobian_weight * squared_jacobian(model, state, context, image)
        if config.agreement_weight:
            start = 10.0 ** float(6 * torch.rand(()) - 3) * torch.randn_like(state).exp()
            other = model.solve(context, graph, steps=config.steps, initial_state=start).value
            total = total + config.agreement_weight * _relative_change_squared(other, state.detach()).mean()
        return total


def _relative_change_squared(image: Tensor, state: Tensor) -> Tensor:
    """(n,) squared relative change of every node."""
    return (image - state).square().sum(dim=1) / (state.square().sum(dim=1) + 1e-12)


def _per_graph_sum(values: Tensor, graph: Graph) -> Tensor:
    return values.new_zeros(graph.num_graphs).index_add(0, graph.graph_ids, values)
