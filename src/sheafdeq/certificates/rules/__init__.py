"""The rules of this package, one file a model; importing them registers them (:mod:`~.rule`)."""

from __future__ import annotations

from sheafdeq.certificates.rules.appnp import appnp
from sheafdeq.certificates.rules.eignn import eignn
from sheafdeq.certificates.rules.energy_gnn import energy_gnn
from sheafdeq.certificates.rules.ignn import ignn
from sheafdeq.certificates.rules.sheaf_cascade import sheaf_cascade
from sheafdeq.certificates.rules.sheaf_deq import sheaf_deq
from sheafdeq.certificates.rules.sheaf_relay import sheaf_relay
from sheafdeq.certificates.rules.strong_attention import strong_attention
from sheafdeq.certificates.rules.strong_sheaf import strong_sheaf

__all__ = [
    "appnp",
    "eignn",
    "energy_gnn",
    "ignn",
    "sheaf_cascade",
    "sheaf_deq",
    "sheaf_relay",
    "strong_attention",
    "strong_sheaf",
]
