"""The parts models are made of: sheaves and their maps, gates, edge features, rows, and models that
read a table."""

from __future__ import annotations

from sheafdeq.layers.cellular_sheaf import CellularSheaf
from sheafdeq.layers.gates import GATES, Gate, gate_by_name
from sheafdeq.layers.gathering import GatheringModel
from sheafdeq.layers.operator import SheafOperator

__all__ = ["GATES", "CellularSheaf", "Gate", "GatheringModel", "SheafOperator", "gate_by_name"]
