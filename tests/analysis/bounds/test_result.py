"""The table: statuses from kinds, a JSON round trip, a table for notebooks."""

from __future__ import annotations

import json

from normscope.analysis.bounds.result import BoundRow, BoundsResult, shown
from normscope.core.json_form import read, to_plain
from normscope.core.result import Rows
from normscope.core.value import Kind, Value


def _rows() -> Rows[BoundRow]:
    good = Value.of(0.2, Kind.PROBABILISTIC, statement="a <b>", assumptions=("x",), delta=0.05)
    huge = Value(200.0, Kind.PRINTED, statement="c")
    other = BoundRow.of_value("other", Value.of(0.1, Kind.PROBABILISTIC), 2, of="the compressed network")
    return Rows(
        (BoundRow.of_value("good", good, 10), BoundRow.of_value("huge", huge, 10), other, BoundRow.refused("no", "why"))
    )


def test_status_follows_the_kind() -> None:
    """A printed number is no certificate, and guessing decides what is vacuous."""
    rows = _rows()
    assert [r.status for r in rows] == ["certificate", "scale only", "certificate", "refused"]
    assert [r.vacuous for r in rows] == [False, True, False, True]
    assert BoundRow.of_value("x", Value.of(0.6, Kind.ESTIMATE), 2).vacuous
    assert not BoundRow.of_value("x", Value.of(0.6, Kind.ESTIMATE), 10).vacuous
    assert shown(rows["huge"].bound) == "7.226e+86"


def test_round_trip_and_best() -> None:
    """JSON and back; the best certificate is one for the network itself."""
    truth = {"train_error": 0.0, "train_samples": 9, "test_error": 0.1, "test_samples": 9, "gap": 0.1, "delta": 0.05}
    result = BoundsResult("net", truth, _rows(), {"raw": {"0.1": 1.0}}, ("said",))
    again = BoundsResult.from_dict(json.loads(result.to_json()))
    assert again.to_json() == result.to_json()
    assert again.rows["good"] == result.rows["good"]
    assert read(BoundRow, json.loads(json.dumps(to_plain(result.rows["huge"])))) == result.rows["huge"]
    assert result.best is not None
    assert result.best.name == "good"
    assert "a &lt;b&gt;" in result._repr_html_()
