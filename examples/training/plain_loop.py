"""Plain PyTorch: an equilibrium layer, a readout, a loop.

python examples/training/plain_loop.py
"""

import torch
from torch import nn
from torch_geometric.data import Data
from torch_geometric.nn import GCNConv

from sheafdeq import SheafDEQLayer


def two_blocks(nodes: int = 120, seed: int = 0) -> Data:
    """Two communities that link mostly to one another; features tell them apart but for noise."""
    draw = torch.Generator().manual_seed(seed)
    label = torch.arange(nodes) % 2
    close = (label.unsqueeze(0) != label.unsqueeze(1)) * 0.05 + 0.005
    edges = (torch.rand(nodes, nodes, generator=draw) < close).triu(1).nonzero().T
    x = torch.randn(nodes, 4, generator=draw)
    x[:, 0] += 1.0 * (2 * label - 1)
    train = torch.rand(nodes, generator=draw) < 0.5
    return Data(x=x, edge_index=torch.cat([edges, edges.flip(0)], 1), y=label, train_mask=train)


class Network(nn.Module):
    """A convolution, an equilibrium, a readout: states are (n, width) like any layer's."""

    def __init__(self, features: int, classes: int, width: int = 12) -> None:
        super().__init__()
        self.before = GCNConv(features, width)
        self.settle = SheafDEQLayer(width, width, stalk_dim=3, steps=10)
        self.readout = nn.Linear(width, classes)

    def forward(self, data: Data) -> torch.Tensor:
        hidden = self.before(data.x, data.edge_index).relu()
        return self.readout(self.settle(hidden, data.edge_index))


def main(epochs: int = 40) -> float:
    torch.manual_seed(0)
    data = two_blocks()
    model = Network(4, 2)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2, weight_decay=5e-4)
    loss_of = nn.CrossEntropyLoss()
    for epoch in range(epochs):
        optimiser.zero_grad()
        loss = loss_of(model(data)[data.train_mask], data.y[data.train_mask])
        loss.backward()
        optimiser.step()
        if epoch % 20 == 0:
            print(f"epoch {epoch}: loss {loss.item():.3f}")
    with torch.no_grad():
        right = model.eval()(data).argmax(1) == data.y
    accuracy = float(right[~data.train_mask].float().mean())
    print(f"accuracy on the held-out nodes: {accuracy:.3f}")
    return accuracy


if __name__ == "__main__":
    main()
