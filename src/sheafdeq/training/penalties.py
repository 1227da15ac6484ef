r"""A cheap estimate of how much a recurrence amplifies at the state it reads out.

Let z > 0 be a state, T the map and f = log T exp the map in log coordinates, J its Jacobian at log z. For random signs v,

    E |J v|_2^2 = sum_ij J_ij^2 = |J|_F^2        (Hutchinson),

so ``|J v|^2 / N`` is an unbiased estimate of the mean over the N coordinates of the squared 2-norm of their rows of J. It bounds
nothing by itself: it is an estimate, not an upper bound, of a quantity that is at most (and usually far below) the mean squared
absolute row sum, whose maximum the Thompson rate is. Pressing it down presses down the local gain in every direction, where a
residual penalty only sees the direction the iteration happens to move in.

J v is taken as the difference quotient (f(log z + eps v) - f(log z)) / eps: one further evaluation of the map, with first-order
gradients only, so that it works with every kernel and model. The quotient is exact for maps linear in log coordinates and
has an error of order eps otherwise.
"""

from __future__ import annotations

import torch
from torch import Tensor

from sheafdeq.equilibrium import EquilibriumModel
from sheafdeq.errors import InputError

__all__ = ["squared_jacobian"]

STEP = 1e-2
"""eps: small against the size of log states, large against single precision."""


def squared_jacobian(
    model: EquilibriumModel, state: Tensor, context: object, image: Tensor | None = None, *, step: float = STEP
) -> Tensor:
    """Scalar: |J v|_2^2 / (n c) for one draw of random signs v, differentiable in state and parameters.

    ``image`` is T(state) where it is known already. Models with positive states use log coordinates; for others J is the Jacobian
    of T itself.
    """
    if not 0 < step < 1:
        raise InputError(f"step must be between 0 and 1, got {step!r}")
    image = model.step(state, context) if image is None else image
    signs = torch.randint(0, 2, state.shape, device=state.device).to(state.dtype) * 2 - 1
    if state.numel() == 0:
        return state.new_zeros(())
    if bool((state.detach() > 0).all()) and bool((image.detach() > 0).all()):
        moved = model.step(state * torch.exp(step * signs), context)
        change = moved.log() - image.log()
    else:
        change = model.step(state + step * signs, context) - image
    return (change / step).square().mean()
