"""A LightningModule in forty lines (pip install lightning).

python examples/training/lightning_module.py
"""

import lightning
import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

from sheafdeq import SheafCascade, load_task


class Settling(lightning.LightningModule):
    """Any model of the package; a solve that did not converge is a metric, never a silence."""

    def __init__(self, model: nn.Module, learning_rate: float = 1e-2) -> None:
        super().__init__()
        self.model, self.learning_rate = model, learning_rate

    def _step(self, batch: Data, name: str) -> torch.Tensor:
        outputs, solution = self.model(batch, return_info=True)
        loss = nn.functional.cross_entropy(outputs, batch.y)
        accuracy = (outputs.argmax(1) == batch.y).float().mean()
        size = batch.num_graphs
        self.log(f"{name}_loss", loss, batch_size=size)
        self.log(f"{name}_accuracy", accuracy, batch_size=size)
        self.log(f"{name}_converged", float(solution.converged), batch_size=size)
        return loss

    def training_step(self, batch: Data, _: int) -> torch.Tensor:
        return self._step(batch, "train")

    def validation_step(self, batch: Data, _: int) -> None:
        self._step(batch, "validation")

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=self.learning_rate)


def main(epochs: int = 15, nodes: int = 150) -> dict[str, float]:
    lightning.seed_everything(0, verbose=False)
    task = load_task("community", level=3, nodes=nodes)
    graph, target = task.train.graph, task.train.target
    ids = range(graph.num_graphs)
    parts = [graph.graph_ids == number for number in ids]
    data = [
        Data(
            x=graph.x[part],
            edge_index=graph.edge_index[:, part[graph.source]] - int(part.nonzero()[0]),
            y=target[part],
        )
        for part in parts
    ]
    model = SheafCascade(2, 3, 3, 8, levels=3, level_steps=4)
    trainer = lightning.Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Settling(model), DataLoader(data[:-1], batch_size=2), DataLoader(data[-1:]))
    found = {name: float(value) for name, value in trainer.callback_metrics.items()}
    print({name: round(value, 3) for name, value in found.items()})
    return found


if __name__ == "__main__":
    main()
