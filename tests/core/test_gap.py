"""Shares of a gap add up, by cause too, and survive JSON."""

from __future__ import annotations

import json

import pytest

from normscope.core.gap import CAUSES, Gap, Share
from normscope.core.json_form import read, to_plain

GAP = Gap("global", (Share("a", "attention", 1.0), Share("b", "chains", -0.25), Share("c", "attention", 0.5)))


def test_shares_add_up() -> None:
    assert GAP.log10 == pytest.approx(1.25)
    assert GAP.by_cause() == {"attention": 1.5, "chains": -0.25}
    assert sum(GAP.by_cause().values()) == pytest.approx(GAP.log10)


def test_json_gives_it_back() -> None:
    assert read(Gap, json.loads(json.dumps(to_plain(GAP)))) == GAP
    assert {share.cause for share in GAP.shares} <= set(CAUSES)
