"""Equilibria of graphs that are divided over processes and machines.

    graph --partition--> parts with halos --> workers (one a part) --> outputs, solution, record

:func:`infer` is the whole way in one call; ``docs/many_machines.md`` is the guide.
"""

from __future__ import annotations

from sheafdeq.distributed.assignment import edge_cut as edge_cut
from sheafdeq.distributed.assignment import partition as partition
from sheafdeq.distributed.asynchronous import Pace as Pace
from sheafdeq.distributed.engine import Engine as Engine
from sheafdeq.distributed.gradient import Partitioned as Partitioned
from sheafdeq.distributed.infer import Inference as Inference
from sheafdeq.distributed.infer import infer as infer
from sheafdeq.distributed.infer import infer_parts as infer_parts
from sheafdeq.distributed.mail import Faults as Faults
from sheafdeq.distributed.part import Part as Part
from sheafdeq.distributed.part import cut_graph as cut_graph
from sheafdeq.distributed.yardstick import Yardstick as Yardstick
from sheafdeq.distributed.yardstick import yardstick_for as yardstick_for
