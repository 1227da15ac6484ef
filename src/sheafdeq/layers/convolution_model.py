"""One graph convolution, iterated to a tolerance and read out linearly: what IGNN and EIGNN
share."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional
from typing_extensions import Unpack

from sheafdeq.adjoints import Adjoint
from sheafdeq.distances import SUP
from sheafdeq.layers.feature_encoder import EncodedModel, EncodedWidth
from sheafdeq.layers.gathering import GatheringModel
from sheafdeq.layers.sizes import WideModel
from sheafdeq.solvers import Picard, Solver

__all__ = ["ConvolutionModel"]


class ConvolutionModel(WideModel, EncodedModel, GatheringModel):
    r"""States (n, c) driven by B(X), linear, and read out as :math:`r(M \odot H^\star)` with a
    dropout mask M, the rows of H at unit length with ``normalise``.

    Args:
        sizes: ``in_channels`` f, ``out_channels`` o, ``width`` c.
        steps: limit of the iteration.
        tolerance: change of the largest entry at which it stops.
        normalise: scale rows of the equilibrium to unit length before the readout.
        solver: replaces that iteration.
        gradient: how it is differentiated.
        options: ``encoder`` and ``input_dropout``, what the features pass first
            (:class:`~sheafdeq.layers.feature_encoder.EncodedModel`), and ``dropout``, in that
            encoder and on the state at the readout while training, one mask a solve.
    """

    edge_input = "ignored"
    weighted = True

    def __init__(
        self,
        *sizes: int,
        steps: int,
        tolerance: float,
        normalise: bool,
        solver: str | Solver | None,
        gradient: str | Adjoint,
        **options: Unpack[EncodedWidth],
    ) -> None:
        default = Picard(steps=steps, tolerance=tolerance, stop_early=True, distance=SUP)
        solver = default if solver is None else solver
        super().__init__(*sizes, steps=steps, solver=solver, gradient=gradient, **options)
        self.normalise = bool(normalise)
        self.drive = nn.Linear(self.inputs.out_channels, self.width)
        self.linear_readout = nn.Linear(self.width, self.out_channels)

    def readout(self, state: Tensor, context: Any) -> Tensor:
        """(n, c) -> (n, o); a zero row stays zero."""
        rows = functional.normalize(state, dim=1) if self.normalise else state
        if context.readout_mask is not None:
            rows = rows * context.readout_mask
        result: Tensor = self.linear_readout(rows)
        return result
