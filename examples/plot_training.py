"""
Train, continue, look
=====================

A small SheafDEQ learns a community graph in a few seconds and is then iterated past its horizon.
The status says whether it settled.
"""

import matplotlib.pyplot as plt

from sheafdeq.diagnostics import continue_iteration
from sheafdeq.training import TrainingConfig, train
from sheafdeq.training.run_identity import task_of

config = TrainingConfig.model_validate(
    {
        "task": {"name": "community", "level": 0, "options": {"nodes": 90}},
        "model": {"name": "sheafdeq", "options": {"shift": 1.3}},
        "max_epochs": 60,
    }
)
result = train(config, progress=None)
print(
    {split: round(score, 1) for split, score in result.record.scores.items()},
    result.record.solves.final,
)

# %%
# The same map, iterated five times as long as it was trained for.

task = task_of(config)
longer = continue_iteration(result.model, task.test.graph, iterations=100)
print(longer.status)

figure, axes = plt.subplots(1, 2, figsize=(8, 2.8))
axes[0].plot(result.record.curves["validation"])
axes[0].set_xlabel("epoch")
axes[0].set_ylabel(f"validation {result.record.task.score}")
axes[1].semilogy(longer.update)
axes[1].axvline(result.model.steps, color="black", linestyle="--", linewidth=0.8)
axes[1].set_xlabel("iteration")
axes[1].set_ylabel("largest relative change")
figure.tight_layout()
