"""Groups as values."""

from __future__ import annotations

import torch

from normscope.geometry.groups import Certificate, SymmetryGroup, length, random_like


def test_json_form_leaves_out_what_was_not_measured() -> None:
    body = SymmetryGroup("scale", ("w",), 2, "two factors", certificate=Certificate(0.0, 1e-16)).to_dict()
    assert body["certificate"] == {"derivative": 0.0, "orbit": 1e-16, "exact": True}
    assert (body["kind"], body["parameters"], body["dimension"]) == ("scale", ["w"], 2)


def test_a_random_direction_is_as_long_on_each_parameter() -> None:
    direction = {"a": torch.ones(3).double(), "b": torch.zeros(2).double()}
    drawn = random_like(direction)
    assert abs(float(drawn["a"].norm()) - 3**0.5) < 1e-12
    assert float(drawn["b"].norm()) == 0.0
    assert length({}) == 0.0
