"""Equilibria to fifty digits, from the equations alone: the models' own code is not used here.

Arrays are numpy arrays of mpmath numbers. A float64 Jacobian serves as the approximate inverse of
Newton's method, each round of which gains about twelve digits; the residual, in fifty digits, is
what decides.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mpmath
import numpy as np
import torch

from sheafdeq.data.graph import Graph

DIGITS = 50


def exact(tensor: torch.Tensor) -> Any:
    """A float64 tensor as mpmath numbers, without rounding."""
    values = tensor.detach().double().numpy()
    return (
        np.vectorize(mpmath.mpf, otypes=[object])(values) if values.size else values.astype(object)
    )


root = np.vectorize(mpmath.sqrt, otypes=[object])
exponential = np.vectorize(mpmath.exp, otypes=[object])
logarithm = np.vectorize(mpmath.log, otypes=[object])
tanh = np.vectorize(mpmath.tanh, otypes=[object])


def relu(x: Any) -> Any:
    return np.where(x > 0, x, mpmath.mpf(0))


def layer_norm(x: Any, gamma: Any, bias: Any, eps: float) -> Any:
    centred = x - x.sum(-1, keepdims=True) / x.shape[-1]
    variance = (centred * centred).sum(-1, keepdims=True) / x.shape[-1]
    return centred / root(variance + mpmath.mpf(eps)) * gamma + bias


def gate(name: str, a: Any, b: Any, floor: float) -> Any:
    if name == "tanh":
        return tanh(a) - tanh(b)
    if name == "rational":
        return a / (1 + a) - b / (1 + b)
    return (a - b) / (mpmath.mpf(floor) + a + b)


class Edges:
    """Stored edges with the symmetric normalisation."""

    def __init__(self, graph: Graph) -> None:
        self.source, self.target = graph.source.tolist(), graph.target.tolist()
        self.n = graph.num_nodes
        counts = [0] * self.n
        for v in self.target:
            counts[v] += 1
        self.degree = [mpmath.mpf(max(1, count)) for count in counts]
        self.pairs = list(zip(self.source, self.target, strict=True))
        self.weight = [1 / mpmath.sqrt(self.degree[u] * self.degree[v]) for u, v in self.pairs]

    def about(self, graph: Graph, differences: bool = True) -> Any:
        """What the inputs say about an edge."""
        x = exact(graph.x)
        own = None if graph.edge_attr is None else exact(graph.edge_attr)
        rows = []
        for k, (u, v) in enumerate(self.pairs):
            if differences:
                difference = x[u] - x[v]
                length = mpmath.sqrt((difference * difference).sum() + mpmath.mpf(1e-12))
                row = [*difference, length]
            else:
                row = [] if own is not None else [mpmath.mpf(1)]
            rows.append(row + ([] if own is None else list(own[k])))
        return np.array(rows, dtype=object)


def blocks(raw: Any, edges: Edges, softening: float) -> tuple[list[Any], list[Any]]:
    """P_e and D_v of generated maps (e, 2, d, d)."""
    d = raw.shape[-1]
    eye = np.array([[mpmath.mpf(int(i == j)) for j in range(d)] for i in range(d)], dtype=object)
    products, diagonal = [], [eye.copy() for _ in range(edges.n)]
    for k, (_, v) in enumerate(edges.pairs):
        maps = []
        for half in raw[k]:
            norm = mpmath.sqrt((half * half).sum() + mpmath.mpf(softening) ** 2)
            maps.append(half / norm if norm > mpmath.mpf(1e-12) else half * 0)
        source, target = maps
        products.append(target.T @ source * edges.weight[k])
        diagonal[v] = diagonal[v] - target.T @ target / edges.degree[v]
    return products, diagonal


def propagate(products: list[Any], diagonal: list[Any], values: Any, edges: Edges) -> Any:
    out = np.array([diagonal[v] @ values[v] for v in range(edges.n)], dtype=object)
    for k, (u, v) in enumerate(edges.pairs):
        out[v] = out[v] + products[k] @ values[u]
    return out


def cascade(model: Any, graph: Graph) -> Callable[[Any], Any]:
    """The joint step of a SheafCascade."""
    edges, d, q, c = Edges(graph), model.stalk_dim, model.channels, model.width
    w = {name: exact(value) for name, value in model.named_parameters()}
    x = exact(graph.x)
    first = relu(
        edges.about(graph, model.differences) @ w["edge_encoder.0.weight"].T
        + w["edge_encoder.0.bias"]
        if edges.pairs
        else np.zeros((0, len(w["edge_encoder.0.bias"])), dtype=object)
    )
    hidden_all = first @ w["edge_encoder.2.weight"].T + w["edge_encoder.2.bias"]
    drive_all = x @ w["feature_drive.weight"].T
    base = x @ w["encoder.weight"].T + w["encoder.bias"]
    h = model.hidden

    def level(number: int, below: Any, own: Any) -> Any:
        group = 0 if model.tied else number
        at = f"level_modules.{group}."
        norm = model.level_modules[group].norm
        z = layer_norm(below, w[at + "norm.weight"], w[at + "norm.bias"], norm.eps)
        source, target = z @ w[at + "source.weight"].T, z @ w[at + "target.weight"].T
        part = hidden_all[:, group * h : (group + 1) * h]
        hidden = [part[k] + source[u] + target[v] for k, (u, v) in enumerate(edges.pairs)]
        raw = (
            relu(np.array(hidden, dtype=object)) @ w[at + "maps.weight"].T + w[at + "maps.bias"]
            if hidden
            else np.zeros((0, 2 * d * d), dtype=object)
        )
        products, diagonal = blocks(raw.reshape(-1, 2, d, d), edges, 1e-3)
        message = w[at + "message_stalk"] @ z.reshape(-1, d, q) @ w[at + "message_channel"]
        spread = propagate(products, diagonal, message, edges).reshape(-1, c)
        drive = z @ w[at + "own.weight"].T + w[at + "own.bias"] + spread
        drive = relu(drive + drive_all[:, group * c : (group + 1) * c])
        first_mixing, second_mixing = w[at + "stalk_mixing"], w[at + "channel_mixing"]
        state = own.reshape(-1, d, q)
        turned = [p @ first_mixing for p in products], [p @ first_mixing for p in diagonal]
        signed = propagate(*turned, state @ second_mixing, edges)
        sizes = [abs(p) for p in turned[0]], [abs(p) for p in turned[1]]
        size = propagate(*sizes, state @ abs(second_mixing), edges)
        value = gate(model.gate.name, (size + signed) / 2, (size - signed) / 2, model.gate.floor)
        return drive + mpmath.mpf(model.shift) + value.reshape(-1, c)

    def step(state: Any) -> Any:
        columns = [state[:, i * c : (i + 1) * c] for i in range(model.levels)]
        rows = [level(i, columns[i - 1] if i else base, columns[i]) for i in range(model.levels)]
        return np.concatenate(rows, axis=1)

    return step


def sigmoid(x: Any) -> Any:
    return 1 / (1 + exponential(-x))


def perceptron(w: dict[str, Any], name: str, x: Any) -> Any:
    first = relu(x @ w[f"{name}.0.weight"].T + w[f"{name}.0.bias"])
    return first @ w[f"{name}.2.weight"].T + w[f"{name}.2.bias"]


def strong_sheaf(model: Any, graph: Graph) -> Callable[[Any], Any]:
    """The step of a StrongSheafDEQ: y+- = (g +- p) / 2, the majorant g by absolute values."""
    edges, d, q = Edges(graph), model.stalk_dim, model.channels
    w = {name: exact(value) for name, value in model.named_parameters()}
    second = exact(model.budgeted_logits())
    drive = relu(exact(graph.x) @ w["drive.weight"].T + w["drive.bias"])
    eye = np.array([[mpmath.mpf(int(i == j)) for j in range(d)] for i in range(d)], dtype=object)
    if edges.pairs:
        about = edges.about(graph)
        raw = perceptron(w, "sizes", about)
        sizes = logarithm(1 + exponential(raw)).reshape(-1, 2, d, d)
        sizes = sizes / root((sizes * sizes).sum((2, 3), keepdims=True))
        inputs = about @ w["logit_inputs.weight"].T + w["logit_inputs.bias"]

    def step(state: Any) -> Any:
        h = state.reshape(-1, d, q)
        rows = (h / h.sum(-1, keepdims=True)).reshape(-1, d * q)
        source, target = rows @ w["logit_source.weight"].T, rows @ w["logit_target.weight"].T
        products, sized = [], []
        diagonal, own_sized = (
            [eye.copy() for _ in range(edges.n)],
            [eye.copy() for _ in range(edges.n)],
        )
        for k, (u, v) in enumerate(edges.pairs):
            hidden = relu(inputs[k] + source[u] + target[v])
            logit = (second @ hidden + w["logits.bias"]).reshape(2, d, d)
            maps = sizes[k] * tanh(logit / 2)
            products.append(maps[1].T @ maps[0] * edges.weight[k])
            sized.append(sizes[k][1].T @ sizes[k][0] * edges.weight[k])
            diagonal[v] = diagonal[v] - maps[1].T @ maps[1] / edges.degree[v]
            own_sized[v] = own_sized[v] + sizes[k][1].T @ sizes[k][1] / edges.degree[v]
        first, mixing = w["stalk_mixing"], w["channel_mixing"]
        signed = propagate(products, diagonal, first @ h @ mixing, edges)
        size = propagate(sized, own_sized, abs(first) @ h @ abs(mixing), edges)
        value = gate(model.gate.name, (size + signed) / 2, (size - signed) / 2, model.gate.floor)
        return drive + mpmath.mpf(model.shift) + value.reshape(state.shape)

    return step


def strong_attention(model: Any, graph: Graph) -> Callable[[Any], Any]:
    """The step of a StrongAttnDEQ."""
    edges, heads, width = Edges(graph), model.heads, model.channels
    w = {name: exact(value) for name, value in model.named_parameters()}
    query_weight = exact(model.budgeted_query())
    drive = relu(exact(graph.x) @ w["drive.weight"].T + w["drive.bias"])
    bias = perceptron(w, "bias", edges.about(graph)) if edges.pairs else None
    c = heads * width
    mixing = w["mixing.weight"].reshape(c, heads, width)
    values = w["value.weight"].reshape(heads, width, c)
    coefficients = [mixing[:, m] @ values[m] for m in range(heads)]

    def step(state: Any) -> Any:
        unit = state / root((state * state).sum(-1, keepdims=True))
        query = (unit @ query_weight.T / mpmath.sqrt(width)).reshape(-1, heads, width)
        key = (unit @ w["key.weight"].T).reshape(-1, heads, width)
        out = []
        for v in range(edges.n):
            plus, minus = 0, 0
            for m in range(heads):
                weights = [mpmath.exp((query[v, m] * key[v, m]).sum() + w["own_bias"][m])]
                rows = [state[v]]
                for k, (u, target) in enumerate(edges.pairs):
                    if target == v:
                        score = (query[v, m] * key[u, m]).sum() + bias[k, m]
                        weights.append(mpmath.exp(score))
                        rows.append(state[u])
                total = sum(weights)
                mean = sum(weight / total * row for weight, row in zip(weights, rows, strict=True))
                plus = plus + relu(coefficients[m]) @ mean
                minus = minus + relu(-coefficients[m]) @ mean
            out.append(gate(model.gate.name, plus, minus, model.gate.floor))
        return drive + mpmath.mpf(model.shift) + np.array(out, dtype=object)

    return step


def sheaf_deq(model: Any, graph: Graph) -> Callable[[Any], Any]:
    """The step of a SheafDEQ with pre-normalisation in the Euclidean norm."""
    edges, d, q = Edges(graph), model.stalk_dim, model.channels
    w = {name: exact(value) for name, value in model.named_parameters()}
    drive = relu(exact(graph.x) @ w["drive.weight"].T + w["drive.bias"])
    attr = None if graph.edge_attr is None else exact(graph.edge_attr)

    def step(state: Any) -> Any:
        h = state.reshape(-1, d, q)
        z = (h / root((h * h).sum(-1, keepdims=True))).reshape(-1, d * q)
        raw = []
        for k, (u, v) in enumerate(edges.pairs):
            about = np.concatenate([z[u], z[v]] + ([] if attr is None else [attr[k]]))
            maps = [perceptron(w, name, about) for name in ("source_maps", "target_maps")]
            raw.append(np.array(maps, dtype=object).reshape(2, d, d))
        products, diagonal = blocks(np.array(raw, dtype=object).reshape(-1, 2, d, d), edges, 0.0)
        value = w["stalk_mixing"] @ h @ w["channel_mixing"]
        moved = propagate(products, diagonal, value, edges).reshape(state.shape)
        return tanh(moved) + mpmath.mpf(model.shift) + drive

    return step


STEPS = {
    "SheafCascade": cascade,
    "StrongSheafDEQ": strong_sheaf,
    "StrongAttnDEQ": strong_attention,
    "SheafDEQ": sheaf_deq,
}


def equilibrium(
    step: Callable[[Any], Any], model: Any, graph: Graph, state: torch.Tensor
) -> tuple[Any, Any]:
    """The fixed point near ``state`` and its residual, in ``DIGITS`` digits."""
    with torch.enable_grad():
        context = model.prepare(graph)
        shape = state.shape
        jacobian = torch.autograd.functional.jacobian(
            lambda h: model.step(h.view(shape), context).view(-1), state.reshape(-1)
        )
    inverse = torch.linalg.inv(torch.eye(len(jacobian), dtype=torch.float64) - jacobian).numpy()
    current = exact(state)
    for _ in range(12):
        difference = step(current) - current
        largest = max(abs(x) for x in difference.reshape(-1))
        if largest < mpmath.mpf(10) ** (6 - DIGITS):
            return current, largest
        scaled = (difference.reshape(-1) / largest).astype(float)
        change = inverse @ scaled
        current = current + (np.vectorize(mpmath.mpf, otypes=[object])(change) * largest).reshape(
            current.shape
        )
    raise AssertionError(f"Newton's method stopped at a residual of {largest}")
