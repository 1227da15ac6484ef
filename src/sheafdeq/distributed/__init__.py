"""Equilibria of graphs that are divided over processes and machines."""

from __future__ import annotations

from sheafdeq.distributed.part import Part as Part
from sheafdeq.distributed.part import cut_graph as cut_graph
from sheafdeq.distributed.partition import edge_cut as edge_cut
from sheafdeq.distributed.partition import partition as partition
