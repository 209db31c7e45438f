"""What holds for every test: one thread per process, short searches, and a seed that changes from day to day."""

from __future__ import annotations

import functools
import gc
import logging
import os
import time
import zlib
from collections import Counter

import pytest

#: Days since 1970, unless the environment says otherwise; workers take it from the process that started them.
SEED = int(os.environ.setdefault("NORMSCOPE_SEED", str(int(time.time() // 86400))))
#: Whether every long test is run, whole.
ALL = bool(os.environ.get("NORMSCOPE_ALL"))
#: What balls around data are by default: multiplications below which they are looked at, and seconds for all of them.
USUAL_BALLS = {"USUAL_SECONDS": 0.2}


def pytest_sessionstart(session: pytest.Session) -> None:
    """Make searches short where tests run; a process that only hands them to others need not load torch for that."""
    if session.config.getoption("numprocesses", None) and not hasattr(session.config, "workerinput"):
        return
    import hypothesis  # loaded before objects are frozen: it looks at who refers to its generators
    import torch
    import typer.testing

    from normscope.lipschitz import climb
    from normscope.lipschitz.chains import join

    torch.set_num_threads(1)  # matrices are small, so threads only wait for each other
    # Tests of a search itself say how long they want.
    join.SECONDS = 0.05
    climb.CLIMB_WORK = 5e7

    from normscope.analysis import around_data  # it reads the number above

    around_data.BALL_WORK = 5e9
    around_data.BALL_TRIES = 8
    USUAL_BALLS["CHEAP"] = around_data.CHEAP
    around_data.USUAL_SECONDS = USUAL_BALLS["USUAL_SECONDS"]
    if not ALL:  # balls are looked at where a test asks for them, and a few of the smallest networks
        around_data.CHEAP, around_data.USUAL_SECONDS = 1e7, 0.05
    # The verbs are made once, not for every command: that takes half of the time of a quick one.
    typer.testing._get_command = functools.cache(typer.testing._get_command)
    # A busy machine is slow; no example says anything about time. They are others every day.
    hypothesis.settings.register_profile("ours", deadline=None, max_examples=100 if ALL else 40)
    hypothesis.settings.load_profile("ours")


@pytest.fixture(autouse=True)
def _every_part_is_computed(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A part that fails is left out and told; in a test that is a mistake, unless it is marked ``parts_may_fail``."""
    if "parts_may_fail" in request.keywords:
        return
    from normscope.core import errors

    told = errors.failure

    def raised(what: str, error: Exception) -> str:
        if not isinstance(error, errors.NormscopeError):
            raise error
        return told(what, error)

    monkeypatch.setattr(errors, "failure", raised)


@pytest.fixture
def usual_balls(monkeypatch: pytest.MonkeyPatch) -> None:
    """Look at balls around data as users do who ask for nothing."""
    from normscope.analysis import around_data

    for name, number in USUAL_BALLS.items():
        monkeypatch.setattr(around_data, name, number)


#: Examples of docstrings that take long, and the days on which each runs once; their functions have tests of their own.
LONG_EXAMPLES = {"normscope.testing.refute.refute": 5, "normscope.analysis.bounds.measures.measures": 3}


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what is marked ``turns`` and whose turn is another day, unless it was asked for by name.

    Tests of a file that are marked ``together`` run on the same day: what they share takes longer than they do.
    """
    if ALL or any("::" in word for word in config.args):
        return
    copies: Counter[str] = Counter()
    waiting = []
    for item in items:
        mark = item.get_closest_marker("turns")
        if mark is None and item.name in LONG_EXAMPLES:
            mark = pytest.mark.turns(LONG_EXAMPLES[item.name])
        if mark is not None:
            together = mark.kwargs.get("together", False)
            name = item.nodeid.partition("::" if together else "[")[0]
            if (zlib.crc32(name.encode()) + copies[name] + SEED) % mark.args[0]:
                waiting.append(item)
            copies[name] += not together
    config.hook.pytest_deselected(items=waiting)
    left_out = set(waiting)
    items[:] = [item for item in items if item not in left_out]


def pytest_collection_finish() -> None:
    """Spare each test what has nothing to do with it.

    What is there for good is left out of every later garbage collection, a fifteenth of the time of all tests, and
    these come less often. Messages reach pytest through the root logger: to each logger that keeps them for itself,
    torch has dozens, it would add its handlers six times a test, which takes half of the time of an empty test.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    for logger in list(logging.Logger.manager.loggerDict.values()):
        if isinstance(logger, logging.Logger) and logger.name.partition(".")[0] != "normscope":
            logger.propagate = True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say which part of the long tests was run."""
    terminalreporter.write_line(f"part of the long tests: NORMSCOPE_SEED={SEED} (set it to run the same part again)")
