"""
Two answers from one model
==========================

The paper's Theorem 3.2 says that with shift 1.2 every start is led to one equilibrium. Here every
hypothesis holds, and two starts end in two places (Theorem 13 of the theory).
"""

import matplotlib.pyplot as plt
import torch

shift, gain = 1.2, 1.0
mixing = gain * torch.tensor([[1.0, -1.0], [-1.0, 1.0]])


def step(state):
    """Two nodes, one edge, all maps 1: each node reads the other."""
    return torch.tanh(state.flip(0) @ mixing) + shift


figure, axis = plt.subplots(figsize=(4.5, 4))
for start in ([2.0, 0.1], [0.1, 2.0], [1.3, 1.2], [1.2, 1.3], [0.5, 0.4]):
    state = torch.tensor([start, start])
    path = [state[0]]
    for _ in range(60):
        state = step(state)
        path.append(state[0])
    points = torch.stack(path)
    axis.plot(
        points[:, 0], points[:, 1], "o-", markersize=3, linewidth=0.8, label=f"from {tuple(start)}"
    )
axis.set_xlabel("first channel")
axis.set_ylabel("second channel")
axis.legend(fontsize=7)
figure.tight_layout()
print("ends:", [round(float(value), 4) for value in state[0]])
