"""How much memory this process uses, and how much more it may use before the machine swaps or kills it."""

import math
import sys
from pathlib import Path

from normscope.core.errors import NotEnoughMemoryError

#: Folders in which Linux reports limit and use of a control group, by version: (folder, limit, use).
_GROUPS = (
    ("/sys/fs/cgroup", "memory.max", "memory.current"),
    ("/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes"),
)
_PAGE = 4096


def held() -> float:
    """Return the bytes of memory this process uses now; zero where the system does not report it.

    >>> held() >= 0
    True
    """
    pages = _words("/proc/self/statm")
    return float(pages[1]) * _PAGE if len(pages) > 1 else 0.0


def available() -> float:
    """Return the bytes this process may still use, by the machine's memory, its container's limit and its own limits.

    Infinity where the system reports nothing.

    >>> available() > 0
    True
    """
    return max(0.0, min(_of_machine(), _of_container(), _of_process()))


def require(needed: float, what: str, advice: str = "") -> None:
    """Raise :class:`NotEnoughMemoryError` if this many bytes, in addition to those in use, do not fit.

    >>> require(1.0, "One byte")
    """
    free = available()
    if needed > free:
        hint = f" {advice}" if advice else ""
        raise NotEnoughMemoryError(f"{what} needs about {readable(needed)} of memory; {readable(free)} are free.{hint}")


def readable(size: float) -> str:
    """Return a size as people write it.

    >>> readable(3.2e9), readable(5e6), readable(float("inf"))
    ('3.2 GB', '5 MB', 'any amount')
    """
    if math.isinf(size):
        return "any amount"
    return f"{size / 1e9:.1f} GB" if size >= 1e9 else f"{size / 1e6:.0f} MB"


def _of_machine() -> float:
    """Return what the machine can give without swapping."""
    words = _words("/proc/meminfo")
    return float(words[words.index("MemAvailable:") + 1]) * 1024 if "MemAvailable:" in words else math.inf


def _of_container() -> float:
    """Return what the limit of the control group leaves; cached files can be dropped."""
    left = math.inf
    for folder, most, used in _GROUPS:
        limit, use = _words(f"{folder}/{most}"), _words(f"{folder}/{used}")
        if not limit or not use or limit[0] == "max" or float(limit[0]) > 2**60:
            continue
        stat = _words(f"{folder}/memory.stat")
        files = sum(float(stat[stat.index(k) + 1]) for k in ("inactive_file", "active_file") if k in stat)
        left = min(left, float(limit[0]) - float(use[0]) + files)
    return left


def _of_process() -> float:
    """Return what the limits of this process leave (``ulimit -v`` and ``ulimit -d``)."""
    if sys.platform == "win32":
        return math.inf
    import resource

    sizes = _words("/proc/self/statm")
    left = math.inf
    for limit, place in ((resource.RLIMIT_AS, 0), (resource.RLIMIT_DATA, 5)):
        most, _ = resource.getrlimit(limit)
        if most != resource.RLIM_INFINITY and len(sizes) > place:
            left = min(left, most - float(sizes[place]) * _PAGE)
    return left


def _words(path: str) -> list[str]:
    """Return the words of a file, or none if it cannot be read."""
    try:
        return Path(path).read_text().split()
    except OSError:
        return []
