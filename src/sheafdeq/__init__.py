"""Graph neural networks that settle: sheaf equilibria, solvers, certificates and asynchronous
inference.

The names most people need are here; see ``docs/flow.md`` for how the parts fit together. They are
loaded on first use, so that the command line answers at once.
"""

from __future__ import annotations

import importlib
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sheafdeq.adjoints import Implicit, Truncated, Unrolled
    from sheafdeq.asynchronous import Schedule, simulate
    from sheafdeq.certificates import Certificate, certify
    from sheafdeq.data import Graph, Task, load_task, task_from
    from sheafdeq.diagnostics import continue_iteration, multistart
    from sheafdeq.edges import Edges
    from sheafdeq.equilibrium import (
        EquilibriumLayer,
        EquilibriumModel,
        ExplicitModel,
        GraphModel,
        Output,
        Readout,
    )
    from sheafdeq.explain import explainable
    from sheafdeq.layers import CellularSheaf, SheafOperator
    from sheafdeq.models import (
        APPNP,
        DNSD,
        EIGNN,
        GAT,
        GCN,
        IGNN,
        MLP,
        EnergyGNN,
        GraphAttnDEQ,
        LoopTransformer,
        NeuralSheafDiffusion,
        SheafCascade,
        SheafCascadeLayer,
        SheafDEQ,
        SheafDEQLayer,
        SheafRelay,
        StrongAttnDEQ,
        StrongSheafDEQ,
    )
    from sheafdeq.solvers import Anderson, Picard, Solution, Status
    from sheafdeq.training.checkpoint import load_model
    from sheafdeq.training.config import TrainingConfig
    from sheafdeq.training.run import train
    from sheafdeq.zoo import load

try:
    __version__ = version("sheafdeq")
except PackageNotFoundError:  # running from a source tree that was never installed
    __version__ = "0+unknown"

__all__ = [
    "APPNP",
    "DNSD",
    "EIGNN",
    "GAT",
    "GCN",
    "IGNN",
    "MLP",
    "Anderson",
    "CellularSheaf",
    "Certificate",
    "Edges",
    "EnergyGNN",
    "EquilibriumLayer",
    "EquilibriumModel",
    "ExplicitModel",
    "Graph",
    "GraphAttnDEQ",
    "GraphModel",
    "Implicit",
    "LoopTransformer",
    "NeuralSheafDiffusion",
    "Output",
    "Picard",
    "Readout",
    "Schedule",
    "SheafCascade",
    "SheafCascadeLayer",
    "SheafDEQ",
    "SheafDEQLayer",
    "SheafOperator",
    "SheafRelay",
    "Solution",
    "Status",
    "StrongAttnDEQ",
    "StrongSheafDEQ",
    "Task",
    "TrainingConfig",
    "Truncated",
    "Unrolled",
    "__version__",
    "certify",
    "continue_iteration",
    "explainable",
    "load",
    "load_model",
    "load_task",
    "multistart",
    "simulate",
    "task_from",
    "train",
]

_HOMES = {
    "adjoints": "Implicit Truncated Unrolled",
    "asynchronous": "Schedule simulate",
    "data": "Graph Task load_task task_from",
    "diagnostics": "continue_iteration multistart",
    "edges": "Edges",
    "equilibrium": "EquilibriumLayer EquilibriumModel ExplicitModel GraphModel Output Readout",
    "explain": "explainable",
    "layers": "CellularSheaf SheafOperator",
    # certificates go on to labels (certify(...).predictions), which this package registers
    "predictions": "Certificate certify",
    "solvers": "Anderson Picard Solution Status",
    "training": "TrainingConfig load_model train",
    "zoo": "load",
}
_HOME = {name: home for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'sheafdeq' has no attribute {name!r}")
    return getattr(importlib.import_module(f"sheafdeq.{_HOME.get(name, 'models')}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
