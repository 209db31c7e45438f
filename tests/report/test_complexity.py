"""Iteration counts as text and JSON: the numbers of the formulas, computed here by hand."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from normscope.core.result import Result
from normscope.core.value import Kind, Value
from normscope.papers.than2025.complexity.network_complexity import Iterations, Setting, WeightComplexity, of_result
from normscope.report.complexity import NO_CHAIN, complexity_sections
from normscope.report.table import Section
from report.samples import result, value

#: Two layers of norms 2 and 5, the first with a normalizer of constant 3 on the floor: the loss moves by at most ...
WITHOUT, WITH = {"fc": 5.0, "out": 1.0}, {"fc": 15.0}
SETTING = Setting(alpha=0.5, delta=0.25, gap=2.0, radius=4.0)


def _iterations(found: Result, weights: Sequence[WeightComplexity] = ()) -> Iterations:
    constant = Value.of(1.0, Kind.CERTIFIED)
    return Iterations(found, "l1", constant, SETTING, of_result(found, constant, SETTING), weights)


def _rows(sections: Sequence[Section], title: str) -> dict[str, tuple[str, ...]]:
    table = next(s.table for s in sections if s.title == title)
    assert table is not None
    return {row[0]: row[1:] for row in table.rows}


def test_counts_are_those_of_the_formulas() -> None:
    """L, L^2 gap/(delta alpha^3) and (L radius/alpha)^2, without normalizers and with them."""
    sections = complexity_sections(_iterations(result()))
    assert [s.title for s in sections] == [
        "iterations for each weight of small",
        "without normalizers",
        "with normalizers",
        "assumed",
    ]
    for title, truth in (("without normalizers", WITHOUT), ("with normalizers", WITH)):
        rows = _rows(sections, title)
        assert set(rows) == set(truth)
        for name, constant in truth.items():
            numbers = (constant, constant**2 * 2 / (0.25 * 0.5**3), (constant * 4 / 0.5) ** 2)
            assert rows[name][2:] == tuple(f"{x:.4g}" for x in numbers)
    assert _rows(sections, "without normalizers")["fc"][1] == "20"  # Corollary 19: 5/alpha^2
    assert _rows(sections, "with normalizers")["fc"][0] == "-"  # Corollary 18 is about no normalizers
    assert any("plain chain" in line for line in sections[-1].lines)


def test_a_network_that_is_no_chain_is_said_to_be_none() -> None:
    """Its proved constant exceeds the product of its layers."""
    chain = _iterations(result())
    assert NO_CHAIN not in complexity_sections(chain)[0].lines
    assert chain.to_dict()["plain_chain"] is True
    skips = _iterations(result(end_to_end={"global": value(4000.0)}))
    assert NO_CHAIN in complexity_sections(skips)[0].lines
    assert skips.to_dict()["plain_chain"] is False


def test_a_network_without_normalizers_has_none() -> None:
    """The table is replaced by a word."""
    plain = complexity_sections(_iterations(result(normalizers=())))
    section = next(s for s in plain if s.title == "with normalizers")
    assert (section.table, section.after) == (None, ("there are no normalizers",))


def test_the_real_graph_comes_with_the_kind_of_its_constants() -> None:
    """One row for each weight."""
    weight = WeightComplexity("fc.weight", value(7.0), value(8.0, Kind.ESTIMATE), value(9.0))
    sections = complexity_sections(_iterations(result(), [weight]))
    assert sections[-1].title.startswith("on the real graph")
    assert _rows(sections, sections[-1].title)["fc.weight"][:4] == ("7", "8", "9", "certified")


def test_the_document_holds_the_same_numbers() -> None:
    """In strict JSON, with the setting they depend on."""
    weight = WeightComplexity("fc.weight", value(7.0), value(8.0, Kind.ESTIMATE), value(9.0))
    read: dict[str, Any] = json.loads(_iterations(result(), [weight]).to_json())
    assert (read["kind"], read["model"], read["loss"]["name"]) == ("complexity", "small", "l1")
    assert read["setting"] == {"alpha": 0.5, "delta": 0.25, "gap": 2.0, "radius": 4.0, "signal": 1.0}
    fc, out = read["layers"]
    assert 10 ** fc["without_normalizers"]["lipschitz"]["log10"] == pytest.approx(WITHOUT["fc"])
    assert 10 ** fc["with_normalizers"]["lipschitz"]["log10"] == pytest.approx(WITH["fc"])
    assert out["with_normalizers"] is None
    assert 10 ** read["weights"][0]["convex"]["log10"] == pytest.approx(9.0)
