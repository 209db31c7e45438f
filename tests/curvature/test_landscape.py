"""Slices of the loss."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from curved import classifier, labelled
from fingerprints import fingerprint
from normscope.core.errors import InputError
from normscope.curvature.directions import Directions, row_groups
from normscope.curvature.landscape import filter_direction, landscape, moved, trajectory
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products


def test_the_middle_is_the_loss_and_the_bend_is_the_curvature() -> None:
    model = classifier()
    before = fingerprint(model)
    with Problem(model, labelled(), dtype=torch.float64) as problem:
        direction = filter_direction(problem)
        found = landscape(problem, [direction], span=1e-3, points=3)
        bend = (found.loss[0] - 2 * found.loss[1] + found.loss[2]) / 1e-6
        assert found.loss[1] == pytest.approx(problem.value())
        assert bend == pytest.approx(float(direction @ Products(problem)(direction)), rel=1e-3)
        plane = landscape(problem, [direction, filter_direction(problem, 1)], points=3)
        assert plane.loss.shape == (3, 3)
        assert plane.loss[1, 1] == pytest.approx(problem.value())
        rows = problem.split(direction)["0.weight"].norm(dim=1)
        torch.testing.assert_close(rows, problem.split(problem.point())["0.weight"].norm(dim=1))
        with pytest.raises(InputError, match="one or two directions"):
            landscape(problem, [])
    assert fingerprint(model) == before


def test_geodesics_keep_lengths_and_see_no_scale() -> None:
    slices = []
    for factor in (1.0, 4.0):
        model = classifier(eps=1e-30)
        with torch.no_grad():
            model[0].weight.mul_(factor)
            model[3].weight.mul_(factor)
        with Problem(model, labelled(), dtype=torch.float64, parameters=["0.weight", "3.weight"]) as problem:
            spheres = Directions(problem.point(), row_groups(problem, ["0.weight", "3.weight"]))
            direction = filter_direction(problem)
            there = moved(problem.point(), direction, spheres)
            for name, value in problem.split(there).items():
                torch.testing.assert_close(value.norm(dim=1), problem.split(problem.point())[name].norm(dim=1))
            slices.append(landscape(problem, [direction], points=5, spheres=spheres).loss)
    np.testing.assert_allclose(slices[0], slices[1], rtol=1e-9)


def test_trajectories_say_what_lies_outside_the_plane() -> None:
    origin = torch.zeros(4)
    path = [torch.tensor([1.0, 2.0, 0.0, 0.0]), torch.tensor([0.0, 3.0, 4.0, 0.0])]
    frame = [torch.tensor([1.0, 0.0, 0.0, 0.0]), torch.tensor([1.0, 1.0, 0.0, 0.0])]
    places, outside = trajectory(origin, path, frame)
    np.testing.assert_allclose(places, [[-1.0, 2.0], [-3.0, 3.0]], atol=1e-6)
    np.testing.assert_allclose(outside, [0.0, 0.8], atol=1e-6)
