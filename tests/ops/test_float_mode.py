"""Gradients below the smallest normal number are zero in the kernels' backward passes, in every
thread, and the caller's arithmetic stays as it was."""

from __future__ import annotations

import pytest
import torch

import graphs
from sheafdeq.ops import native_available
from sheafdeq.ops.block_kernel import native_product

pytestmark = pytest.mark.skipif(not native_available(), reason="the native kernel is not built")
TINY = torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("threads", [1, 2])
def test_vanished_gradients_are_zero(threads: int) -> None:
    graph = graphs.random_graph(900, 20000, 1, dtype=torch.float32)
    edges = graph.edges.wiring
    generator = torch.Generator().manual_seed(0)
    values = torch.rand(900, 2, 3, generator=generator).requires_grad_()
    blocks = torch.rand(graph.num_edges, 2, 2, generator=generator).requires_grad_()
    diagonal = torch.rand(900, 2, 2, generator=generator).requires_grad_()
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(threads)
        out = native_product(blocks, diagonal, values, edges)
        small = torch.full_like(out, TINY / 8)
        large = torch.full_like(out, TINY * 1024)
        vanished = torch.autograd.grad(out, [values, blocks, diagonal], small, retain_graph=True)
        kept = torch.autograd.grad(out, [values, blocks, diagonal], large)
    finally:
        torch.set_num_threads(before)
    assert all(not gradient.any() for gradient in vanished)
    assert all(bool(gradient.any()) for gradient in kept)
    halves = torch.full((64,), TINY) / 4  # PyTorch itself still counts with such numbers
    assert bool(halves.all())
