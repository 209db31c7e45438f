"""The part of a long test that runs today: all of it with ``NORMSCOPE_ALL``, else a few that change from day to day."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")


def todays(items: Iterable[Item], count: int) -> list[Item]:
    """Return some of the items, in their order, chosen by ``NORMSCOPE_SEED``; all of them with ``NORMSCOPE_ALL``."""
    given = list(items)
    if os.environ.get("NORMSCOPE_ALL") or count >= len(given):
        return given
    chosen = set(random.Random(int(os.environ["NORMSCOPE_SEED"])).sample(range(len(given)), count))
    return [item for i, item in enumerate(given) if i in chosen]
