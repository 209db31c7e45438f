"""Known flat directions, also those of symmetry groups."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from curved import classifier, labelled
from normscope.core.errors import InputError
from normscope.curvature import directions
from normscope.curvature.directions import Directions, directions_of, find_groups, row_groups
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products


def _directions(problem: Problem) -> Directions:
    biases = torch.zeros(7, problem.dimension, dtype=torch.float64)
    place = next(block.place for block in problem.blocks if block.name == "0.bias")
    biases[:, place] = torch.eye(7, dtype=torch.float64)
    return Directions(problem.point(), row_groups(problem, ["0.weight", "3.weight"]), biases)


def test_the_projection_is_that_of_the_dense_basis() -> None:
    problem = Problem(classifier(), labelled(), dtype=torch.float64)
    found = _directions(problem)
    assert (found.count, found.scales) == (20, 13)
    basis = found.basis()
    torch.testing.assert_close(basis @ basis.mT, torch.eye(20, dtype=torch.float64))
    vector = torch.randn(problem.dimension, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(found.project(vector), vector - basis.mT @ (basis @ vector))
    weight = problem.split(found.on_sphere(vector))["0.weight"]
    rows = problem.split(problem.point())["0.weight"].norm(dim=1, keepdim=True)
    torch.testing.assert_close(weight, rows * problem.split(vector)["0.weight"])


def test_dependent_generators_count_once() -> None:
    point = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64)
    rows = torch.tensor([[1.0, 2.0, 0.0], [0.0, 0.0, 5.0], [0.0, 0.0, 1.0], [0.0, 0.0, 0.0]], dtype=torch.float64)
    assert Directions(point, torch.tensor([0, 0, -1]), rows).count == 2
    assert Directions(point).count == 0


def test_mistakes_are_told() -> None:
    problem = Problem(classifier(), labelled())
    with pytest.raises(InputError, match="Unknown parameter 'conv'"):
        row_groups(problem, ["conv"])
    with pytest.raises(InputError, match="generators of"):
        Directions(problem.point(), None, torch.ones(1, 3))


def test_dependent_generators_are_counted_once_and_the_basis_is_orthonormal() -> None:
    """Also many of them, of very different lengths, some along scalings, some zero."""
    generator = torch.Generator().manual_seed(0)
    point = torch.randn(60, generator=generator, dtype=torch.float64)
    groups = torch.where(torch.arange(60) < 10, 0, -1)
    scaling = torch.where(groups == 0, point, 0.0)
    few = torch.randn(12, 60, generator=generator, dtype=torch.float64)
    sums = torch.randn(20, 12, generator=generator, dtype=torch.float64) @ few
    rows = torch.cat([few * torch.logspace(-8, 8, 12)[:, None], sums, scaling[None], torch.zeros(1, 60).double()])
    found = Directions(point, groups, rows)
    assert (found.count, found.scales) == (13, 1)
    basis = found.basis()
    assert float((basis @ basis.mT - torch.eye(13)).abs().max()) < 1e-12
    left = rows - (rows @ basis.mT) @ basis
    assert float((left.norm(dim=1) / rows.norm(dim=1).clamp_min(1e-300)).max()) < 1e-9


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
    monkeypatch.setattr(directions, "MOST", 1000)
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
        monkeypatch.setattr(directions, "MOST", 12 * problem.dimension)
        found, left_out = directions_of(problem, groups)
    assert (found.count, found.scales, left_out) == (7, 7, 13)
