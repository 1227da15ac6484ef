"""
Does it settle?
===============

Two untrained models on one graph, iterated from six starts. SheafDEQ promises nothing; the cascade
has one equilibrium for every weight (Theorem 23 of the theory), and all of its starts are led
there.
"""

import matplotlib.pyplot as plt
import torch

from sheafdeq import SheafDEQ
from sheafdeq.data import load_task
from sheafdeq.diagnostics import multistart
from sheafdeq.models import SheafCascade

torch.manual_seed(1)
graph = load_task("community", level=10, nodes=60).test.graph
sheaf = SheafDEQ(2, 3, shift=1.3)
with torch.no_grad():  # large weights, as training makes them
    for parameter in sheaf.parameters():
        parameter.mul_(3)
models = {"SheafDEQ, weights times 3": sheaf, "SheafCascade": SheafCascade(2, 3, levels=4)}

figure, axes = plt.subplots(1, 2, figsize=(8, 3), sharey=True)
for axis, (name, model) in zip(axes, models.items(), strict=True):
    result = multistart(model, graph, iterations=80)
    for trajectory in result.trajectories:
        axis.semilogy(
            range(1, 81), [max(value, 1e-9) for value in trajectory.update], label=trajectory.start
        )
    axis.set_title(f"{name}: {len(result.agreement.groups)} end state(s)")
    axis.set_xlabel("iteration")
axes[0].set_ylabel("largest relative change")
axes[1].legend(title="start", fontsize=7)
figure.tight_layout()
