"""What a monitor tells where warnings are errors, as here, is a failure of the test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from normscope.monitor.sinks.group import LOG


@pytest.fixture(autouse=True)
def nothing_told(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """Refuse what was logged in the place of a warning; a test that expects it clears the log."""
    yield
    found = [r.getMessage() for when in ("setup", "call") for r in caplog.get_records(when) if r.name == LOG.name]
    assert not found, found
