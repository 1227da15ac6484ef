"""Memory of large tensors that is kept from pass to pass: same numbers, used again, never two
tensors on one block, and no more kept than was needed at once."""

from __future__ import annotations

import gc
import sys

import pytest
import torch

from sheafdeq.data.community import community_graph
from sheafdeq.models.sheaf_deq import SheafDEQ
from sheafdeq.ops import native_available, native_calls
from sheafdeq.ops.native_calls import native
from sheafdeq.ops.native_module import native_module

pytestmark = pytest.mark.skipif(
    not native_available() or sys.platform != "linux", reason="needs the native kernel on Linux"
)
ROWS, COLUMNS = 1 << 18, 16  # 16 MiB in single precision


@pytest.fixture(autouse=True)
def empty_pool() -> None:
    gc.collect()
    native_module().release_memory()  # type: ignore[union-attr]


def test_a_freed_block_serves_the_next_tensor_of_its_size() -> None:
    calls = native(torch.float32)
    first = calls.empty(ROWS, COLUMNS).fill_(1.0)
    other = calls.empty(ROWS, COLUMNS).fill_(2.0)
    assert first.data_ptr() != other.data_ptr()
    place = first.data_ptr()
    view = first[5:7]
    del first
    third = calls.empty(ROWS, COLUMNS).fill_(3.0)  # the view still holds the first block
    assert third.data_ptr() != place
    assert (view == 1.0).all()
    assert (other == 2.0).all()
    del view
    fourth = calls.empty(ROWS - ROWS // 8, COLUMNS)  # a little smaller: fits as well
    assert fourth.data_ptr() == place
    assert (other == 2.0).all()
    assert (third == 3.0).all()


def test_no_more_is_kept_than_was_lent_at_once() -> None:
    calls, module = native(torch.float64), native_module()
    for rows in range(ROWS, 4 * ROWS, ROWS // 2):  # every size is new, none fits another
        calls.empty(rows, COLUMNS)
    assert 0 < module.release_memory() <= 4 * ROWS * COLUMNS * 8  # type: ignore[union-attr]
    assert module.release_memory() == 0  # type: ignore[union-attr]


def test_training_on_kept_memory_is_bitwise_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    graph, _ = community_graph(0, level=7, nodes=150)

    def gradients() -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = SheafDEQ(graph.x.shape[1], 3, steps=6)
        for _ in range(2):
            model.zero_grad()
            model.run(graph).logits.square().sum().backward()
        return [parameter.grad.clone() for parameter in model.parameters()]  # type: ignore[union-attr]

    usual = gradients()
    monkeypatch.setattr(native_calls, "POOLED_BYTES", 1)
    for found, expected in zip(gradients(), usual, strict=True):
        assert torch.equal(found, expected)
    assert native_module().release_memory() > 0  # type: ignore[union-attr]
