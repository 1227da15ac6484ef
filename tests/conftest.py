"""Shared fixtures and strategies."""

import os
import random

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _fixed_seed():
    """Every test starts from the same random state and leaves the default dtype alone.

    Python's own numbers differ from test to test: PyG's ``Sequential`` names the module it writes
    by one of them, and takes a module of the same name from an earlier test for its own.
    """
    torch.manual_seed(0)
    random.seed()
    torch.set_num_threads(1)
    yield
    assert torch.get_default_dtype() is torch.float32
