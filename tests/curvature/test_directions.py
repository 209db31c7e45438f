"""Known flat directions."""

from __future__ import annotations

import pytest
import torch

from curved import classifier, labelled
from normscope.core.errors import InputError
from normscope.curvature.directions import Directions, row_groups
from normscope.curvature.problem import Problem


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
