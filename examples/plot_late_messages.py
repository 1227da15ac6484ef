"""
What late messages do
=====================

A model with a guarantee, run while nodes sleep and messages are late: the delay costs time and
nothing else (Theorem 25, Corollary 26).
"""

import matplotlib.pyplot as plt
import torch

from sheafdeq.asynchronous import Schedule, simulate
from sheafdeq.data import load_task
from sheafdeq.models import SheafCascade
from sheafdeq.solvers import Picard

torch.manual_seed(0)
graph = load_task("community", level=10, nodes=60).test.graph
model = SheafCascade(2, 3, levels=3).eval()
with torch.no_grad():
    settled = model.run(graph, solver=Picard(steps=500, tolerance=1e-6, stop_early=True)).solution
print(settled.status, settled.residual)

figure, axis = plt.subplots(figsize=(5, 3))
for window, delay in ((1, 0), (2, 1), (5, 2), (8, 4)):
    points = []

    def see(run, work, state, points=points):
        gap = (state - settled.value).abs().max() / settled.value.abs().max()
        points.append((work, float(gap.clamp(min=1e-8))))

    simulate(
        model, graph, Schedule(window, delay, seed=0), work=60, marks=list(range(61)), observe=see
    )
    axis.semilogy(*zip(*points, strict=True), label=f"({window}, {delay})")
axis.set_xlabel("work (updates a node)")
axis.set_ylabel("distance from the equilibrium")
axis.legend(title="(update window, largest delay)", fontsize=7)
figure.tight_layout()
