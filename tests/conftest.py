"""What holds for every test: one thread per process, and no graph taken from, or left in, the user's cache."""

from __future__ import annotations

import os

import pytest
import torch


@pytest.fixture(autouse=True, scope="session")
def _one_thread_and_no_cache() -> None:
    """Matrices are small, so threads only wait for each other; a graph kept by older code would hide a mistake."""
    torch.set_num_threads(1)
    os.environ["NORMSCOPE_CACHE"] = ""
