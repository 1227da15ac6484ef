"""Shared fixtures and strategies."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings
from torch_geometric.nn import Sequential

SEQUENTIAL_FORWARD = Sequential.forward

settings.register_profile("default", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _fixed_seed():
    """Every test starts from the same random state and leaves the default dtype alone.

    PyG's ``Sequential`` writes the forward of its last instance into its class, where the next one
    finds it if its own cannot be compiled; each test begins with the class as it came.
    """
    torch.manual_seed(0)
    Sequential.forward = SEQUENTIAL_FORWARD
    torch.set_num_threads(1)
    yield
    assert torch.get_default_dtype() is torch.float32
