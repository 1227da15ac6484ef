"""Shared fixtures and strategies."""

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

settings.register_profile("default", deadline=None, max_examples=50, derandomize=True)
settings.load_profile("default")


@pytest.fixture(autouse=True)
def _fixed_seed():
    """Every test starts from the same random state and leaves the default dtype alone."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    yield
    assert torch.get_default_dtype() is torch.float32
