"""One level of a cascade: the sheaf it settles on, and the unconstrained half that infers it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sheafdeq.layers.dense import Dense

__all__ = ["CascadeLevel", "Sheaf"]


@dataclass(frozen=True, eq=False)
class Sheaf:
    """What one level takes from the level below: blocks on the edges and nodes, and a drive.
    Constant while the level settles."""

    blocks: Tensor  # (e, d, d) F_tgt^T F_src / sqrt(deg_u deg_v)
    diagonal: Tensor  # (n, d, d) I - (1/deg) sum F_tgt^T F_tgt
    drive: Tensor  # (n, c) B >= 0


class CascadeLevel(nn.Module):
    """The unconstrained half of one level: from the states below to a sheaf and a drive.

    With z = LayerNorm(u) of the level below (or of the encoded features),

        hidden_e = ReLU(S z_src + T z_tgt + features of the edge and its ends)           (e, h)
        F_src, F_tgt = soft-normalised linear images of hidden_e                         (e, d, d)
        B = ReLU(A z + features of the node + P_F (W_3 z W_4))                         (n, c)

    P_F is the signed sheaf propagation, so a level is one signed, adaptive message-passing step
    (the drive) followed by an equilibrium on the same sheaf. Nothing here needs a bound: the
    guarantee uses only that B >= 0 and that everything is locally Lipschitz in the level below.
    """

    def __init__(self, width: int, stalk_dim: int, channels: int, hidden: int) -> None:
        super().__init__()
        self.stalk_dim, self.channels, self.hidden = stalk_dim, channels, hidden
        self.norm = nn.LayerNorm(width)
        self.source = Dense(width, hidden, bias=False)
        self.target = Dense(width, hidden, bias=False)
        self.maps = nn.Linear(hidden, 2 * stalk_dim**2)
        self.own = Dense(width, width)
        self.message_stalk = nn.Parameter(torch.empty(stalk_dim, stalk_dim))  # W_3
        self.message_channel = nn.Parameter(torch.empty(channels, channels))  # W_4
        self.stalk_mixing = nn.Parameter(torch.empty(stalk_dim, stalk_dim))  # W_1
        self.channel_mixing = nn.Parameter(torch.empty(channels, channels))  # W_2
