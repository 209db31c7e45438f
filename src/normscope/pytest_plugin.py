"""The fixture ``assert_healthy`` for users' tests; nothing is loaded before a test uses it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from normscope.doctor import CheckResult


@pytest.fixture(scope="session")
def assert_healthy() -> Callable[..., CheckResult]:
    """Return :func:`normscope.assert_healthy`: it fails a test for what ``normscope check`` would fail."""
    from normscope.doctor.run import assert_healthy as function

    return function
