"""Models. Each file holds one; all share the contract of :mod:`sheafdeq.recurrence`."""

from __future__ import annotations

from sheafdeq.models.appnp import APPNP
from sheafdeq.models.dnsd import DNSD
from sheafdeq.models.eignn import EIGNN
from sheafdeq.models.energy_gnn import EnergyGNN
from sheafdeq.models.gat import GAT
from sheafdeq.models.gcn import GCN
from sheafdeq.models.graph_attn_deq import GraphAttnDEQ
from sheafdeq.models.ignn import IGNN
from sheafdeq.models.loop_transformer import LoopTransformer
from sheafdeq.models.mlp import MLP
from sheafdeq.models.neural_sheaf_diffusion import NeuralSheafDiffusion
from sheafdeq.models.node_layers import SheafCascadeLayer, SheafDEQLayer
from sheafdeq.models.sheaf_cascade import SheafCascade
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.models.sheaf_relay import SheafRelay
from sheafdeq.models.strong_attention import StrongAttnDEQ
from sheafdeq.models.strong_sheaf import StrongSheafDEQ

__all__ = [
    "APPNP",
    "DNSD",
    "EIGNN",
    "GAT",
    "GCN",
    "IGNN",
    "MLP",
    "EnergyGNN",
    "GraphAttnDEQ",
    "LoopTransformer",
    "NeuralSheafDiffusion",
    "SheafCascade",
    "SheafCascadeLayer",
    "SheafDEQ",
    "SheafDEQLayer",
    "SheafRelay",
    "StrongAttnDEQ",
    "StrongSheafDEQ",
]
