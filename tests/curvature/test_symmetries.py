"""Flat directions from symmetry groups."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from curved import classifier, labelled
from normscope.curvature import symmetries
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.curvature.symmetries import directions_of, find_groups


@dataclass(frozen=True)
class _Rows:
    """The scales of the rows of a weight."""

    name: str
    size: int

    def field(self, point: dict[str, Tensor], coefficients: Tensor) -> dict[str, Tensor]:
        return {self.name: coefficients[:, None] * point[self.name]}


@dataclass(frozen=True)
class _Bias:
    """Every shift of a bias."""

    name: str
    size: int

    def field(self, point: dict[str, Tensor], coefficients: Tensor) -> dict[str, Tensor]:
        return {self.name: coefficients}


@dataclass(frozen=True)
class _Group:
    kind: str
    parameters: tuple[str, ...]
    dimension: int
    family: object


def test_scales_and_shifts_become_directions_along_which_nothing_changes() -> None:
    groups = [
        _Group("scale", ("0.weight",), 7, _Rows("0.weight", 7)),
        _Group("scale", ("3.weight",), 6, _Rows("3.weight", 6)),
        _Group("shift", ("0.bias",), 7, _Bias("0.bias", 7)),
        _Group("shift", ("elsewhere",), 7, _Bias("elsewhere", 7)),
        _Group("permutation", ("0.weight",), 0, None),
    ]
    with Problem(classifier(eps=1e-30), labelled(), dtype=torch.float64) as problem:
        found, left_out = directions_of(problem, groups)
        assert (found.count, found.scales, left_out) == (20, 13, 0)
        gauss = Products(problem, "ggn").dense()
        assert float((found.basis() @ gauss).abs().max()) < 1e-10


def _found(seconds: float) -> tuple[list[str] | None, list[str]]:
    told: list[str] = []
    found = find_groups(classifier(), labelled(), "batch", "auto", seconds, lambda text: None, told)
    return None if found is None else sorted({group.kind for group in found}), told


def test_a_search_that_takes_too_long_is_given_up_and_says_so() -> None:
    assert _found(30.0) == (["row", "scale", "shift"], [])
    found, told = _found(1e-6)
    assert found is None
    assert "not found within 1e-06 s" in told[0]
    assert _found(0) == (None, [])


def test_large_networks_keep_their_scales_unless_time_is_unlimited(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(symmetries, "MOST", 1000)
    found, told = _found(30.0)
    assert found == ["scale"]
    assert "only scalings" in told[0]
    assert _found(math.inf) == (["row", "scale", "shift"], [])


def test_directions_that_do_not_all_fit_are_left_out_but_for_scalings(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = [
        _Group("scale", ("0.weight",), 7, _Rows("0.weight", 7)),
        _Group("shift", ("0.bias",), 7, _Bias("0.bias", 7)),
        _Group("shift", ("3.bias",), 6, _Bias("3.bias", 6)),
    ]
    with Problem(classifier(), labelled()) as problem:
        monkeypatch.setattr(symmetries, "MOST", 12 * problem.dimension)
        found, left_out = directions_of(problem, groups)
    assert (found.count, found.scales, left_out) == (7, 7, 13)
