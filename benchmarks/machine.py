"""Where and how a measurement is made: one thread, a process of its own, CPU time beside wall time."""

from __future__ import annotations

import importlib.metadata
import multiprocessing
import os
import platform
import resource
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

THREADS = 1
#: Computations shorter than this many seconds are repeated.
SHORT = 0.2
Value = TypeVar("Value")


@dataclass(frozen=True)
class Clock:
    """CPU and wall seconds, of this process."""

    cpu: float
    wall: float

    @classmethod
    def now(cls) -> Clock:
        """Return the time now."""
        return cls(time.process_time(), time.perf_counter())

    def since(self) -> Clock:
        """Return what has passed."""
        now = Clock.now()
        return Clock(now.cpu - self.cpu, now.wall - self.wall)


def timed(compute: Callable[[], Value], *, once: bool = False) -> tuple[Value, Clock]:
    """Return a value and the time it takes; what is short is repeated, since CPU time comes in ticks.

    Args:
        compute: the computation.
        once: whether it must not be repeated.
    """
    start = Clock.now()
    value = compute()
    count = 1
    while not once and start.since().wall < SHORT:
        value = compute()
        count += 1
    spent = start.since()
    return value, Clock(spent.cpu / count, spent.wall / count)


def version(distribution: str) -> str | None:
    """Return the version of an installed distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def processor() -> str:
    """Return the name of the processor."""
    try:
        with open("/proc/cpuinfo") as lines:
            names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


def environment() -> dict[str, Any]:
    """Return what a reader needs to judge a timing."""
    names = ("torch", "numpy", "scipy", "normscope")
    return {
        "processor": processor(),
        "cores": os.cpu_count(),
        "threads": THREADS,
        "load_average": round(os.getloadavg()[0], 1),
        "python": platform.python_version(),
        **{name: version(name) for name in names},
    }


def use_one_thread() -> None:
    """Let torch compute on one thread in this process."""
    import torch

    torch.set_num_threads(THREADS)


def stream(produce: Callable[[], Iterator[Any]], cpu_limit: float | None = None) -> Iterator[Any]:
    """Yield what ``produce`` yields in a process of its own, until it ends or has used ``cpu_limit`` CPU seconds.

    What it raises is yielded as the last item, a :class:`Failure`; a limit reached is a ``Failure`` too. To stop early
    close this iterator: the process ends with it.
    """
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(produce, there, cpu_limit))
    child.start()
    there.close()
    try:
        while True:
            try:
                done, item = here.recv()
            except EOFError:
                yield Failure(f"stopped after {cpu_limit:.0f} CPU s" if cpu_limit else "ended early")
                return
            if done:
                if item is not None:
                    yield item
                return
            yield item
    finally:
        here.close()
        if child.is_alive():
            child.terminate()
        child.join()


@dataclass(frozen=True)
class Failure:
    """Why there is no value."""

    reason: str


def _child(produce: Callable[[], Iterator[Any]], pipe: Any, cpu_limit: float | None) -> None:
    """Send every item through a pipe."""
    use_one_thread()
    if cpu_limit is not None:
        seconds = max(1, round(cpu_limit))
        resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds + 1))
    end = None
    try:
        for item in produce():
            pipe.send((False, item))
    except BrokenPipeError:
        return
    except Exception as error:  # a peer may raise anything: the table says what
        end = Failure(f"{type(error).__name__}: {error}"[:120])
    pipe.send((True, end))
    pipe.close()
