"""What holds for every test: one thread per process."""

from __future__ import annotations

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> None:
    """Matrices are small, so threads only wait for each other."""
    torch.set_num_threads(1)
