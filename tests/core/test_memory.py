"""Memory that is left: limits of the process count, and what does not fit is refused."""

from __future__ import annotations

import math
import resource
import subprocess
import sys
from pathlib import Path

import pytest

from normscope.core import memory
from normscope.core.errors import NotEnoughMemoryError
from normscope.core.memory import available, held, require

LIMITED = """
import resource
from normscope.core.memory import available
before = available()
size = int(open("/proc/self/statm").read().split()[0]) * 4096
resource.setrlimit(resource.RLIMIT_AS, (size + 300_000_000, resource.RLIM_INFINITY))
print(before > 300e6, available())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limits are read as Linux tells them")
def test_the_limit_of_the_process_counts() -> None:
    """Of ``ulimit -v`` what is left is what may be taken."""
    done = subprocess.run([sys.executable, "-c", LIMITED], capture_output=True, text=True, check=True)
    before, after = done.stdout.split()
    assert before == "True"
    assert 200e6 < float(after) <= 300e6


@pytest.mark.skipif(sys.platform != "linux", reason="as Linux tells it")
def test_what_is_held_is_near_what_the_system_says() -> None:
    """The peak so far is never smaller."""
    assert 0 < held() <= 1.01 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def test_what_does_not_fit_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """With both sizes in the message."""
    monkeypatch.setattr(memory, "available", lambda: 2e9)
    require(1.9e9, "This")
    with pytest.raises(NotEnoughMemoryError, match=r"This needs about 3.0 GB of memory; 2.0 GB are free. Stop."):
        require(3e9, "This", "Stop.")


def test_the_limit_of_a_container_counts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Files the group has read do not count as used."""
    (tmp_path / "limit").write_text("1000\n")
    (tmp_path / "use").write_text("700\n")
    (tmp_path / "memory.stat").write_text("anon 500\ninactive_file 100\nactive_file 50\n")
    monkeypatch.setattr(memory, "_GROUPS", ((str(tmp_path), "limit", "use"),))
    assert available() == 450.0
    (tmp_path / "limit").write_text("max\n")
    assert available() > 450.0


def test_a_system_that_tells_nothing_has_no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Then nothing is refused."""
    monkeypatch.setattr(memory, "_words", lambda path: [])
    assert available() == math.inf
    assert held() == 0.0
