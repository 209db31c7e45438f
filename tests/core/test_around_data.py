"""What holds around the data: its numbers, and its JSON form."""

from __future__ import annotations

import json
import math

from normscope.core.around_data import ASSUMPTIONS, Around, Neighbourhood
from normscope.core.json_form import read, to_plain
from normscope.core.value import Kind, Value


def _around() -> Around:
    bound = Value.of(3.0, Kind.PROBABILISTIC, delta=0.01, assumptions=ASSUMPTIONS)
    none = Value(math.inf, Kind.PROBABILISTIC, delta=0.01)
    rows = (
        Neighbourhood(0.0, (1.0, 2.0, 3.0), bound, Value.of(3.0, Kind.CERTIFIED), 0.1),
        Neighbourhood(0.1, (1.5, math.inf, 4.0), bound),
        Neighbourhood(0.2, (math.inf,) * 3, none),
    )
    return Around(0.95, 0.99, 3, 90, rows, (0.0, 0.1, 0.1), ("a note",))


def test_the_json_form_is_strict_and_read_back() -> None:
    text = json.dumps(to_plain(_around()), allow_nan=False)
    assert read(Around, json.loads(text)) == _around()


def test_medians_largest_and_points_without_a_constant() -> None:
    rows = _around().neighbourhoods
    assert (rows[0].median, rows[0].largest, rows[0].unbounded) == (2.0, 3.0, 0)
    assert (rows[1].median, rows[1].largest, rows[1].unbounded) == (4.0, math.inf, 1)
    assert math.isinf(Neighbourhood(0.1, (), None).median)


def test_the_best_is_the_widest_with_a_finite_bound() -> None:
    best = _around().best()
    assert best is not None
    assert best.radius == 0.1
    assert Around(0.95, 0.99, 0, 90).best() is None
    assert _around().best_of_points() == _around().neighbourhoods[0]


def test_the_share_of_decisions_within_a_distance() -> None:
    assert _around().decided(0.05) == 2 / 3
    assert Around(0.95, 0.99, 0, 90).decided(0.05) == 0.0
