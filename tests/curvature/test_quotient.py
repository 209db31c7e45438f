"""Spectrum modulo symmetries: three methods, one answer."""

from __future__ import annotations

import math

import pytest
import torch

from curved import classifier, labelled
from normscope.core.errors import InputError, NotEnoughMemoryError
from normscope.curvature.directions import Directions, row_groups
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.curvature.quotient import affordable, quotient


def _known(problem: Problem) -> Directions:
    """Return every symmetry of the network: scales and biases before BatchNorm, and the shift of softmax."""
    places = {block.name: block.place for block in problem.blocks}
    rows = []
    for name in ("0.bias", "3.bias"):
        for i in range(places[name].start, places[name].stop):
            rows.append(torch.zeros(problem.dimension, dtype=torch.float64).index_fill_(0, torch.tensor([i]), 1.0))
    for j in range(7):
        row = torch.zeros(problem.dimension, dtype=torch.float64)
        if j < 6:
            row[places["6.weight"]].view(3, 6)[:, j] = 1.0
        else:
            row[places["6.bias"]] = 1.0
        rows.append(row)
    return Directions(problem.point(), row_groups(problem, ["0.weight", "3.weight"]), torch.stack(rows))


def test_three_methods_agree_and_every_zero_is_explained() -> None:
    with Problem(classifier(eps=1e-30), labelled(120), dtype=torch.float64) as problem:
        known = _known(problem)
        assert known.count == 13 + 13 + 7
        dense, dual = (quotient(problem, known, method=m) for m in ("dense", "dual"))
        lanczos = quotient(problem, known, method="lanczos")
        assert affordable(Products(problem, "ggn")) == ("dense", None)
        raw = torch.linalg.eigvalsh(Products(problem, "ggn").dense())
    assert (dense.unexplained, dual.unexplained) == (0, 0)
    assert int((raw < 1e-8 * raw[-1]).sum()) == known.count
    assert dense.condition == pytest.approx(float(raw[-1] / raw[known.count]), rel=1e-5)
    for other in (dual, lanczos):
        assert other.largest == pytest.approx(dense.largest, rel=1e-6)
        assert other.smallest == pytest.approx(dense.smallest, rel=1e-3)
        assert other.condition == pytest.approx(dense.condition, rel=1e-3)
    assert lanczos.converged


def test_an_eps_that_breaks_symmetries_changes_no_method() -> None:
    """Along a scaling the matrix does not vanish then: all methods look at the complement."""
    with Problem(classifier(eps=0.1), labelled(120), dtype=torch.float64) as problem:
        known = _known(problem)
        dense, dual = (quotient(problem, known, method=m) for m in ("dense", "dual"))
        raw = torch.linalg.eigvalsh(Products(problem, "ggn").dense())
    assert float(raw[known.count]) != pytest.approx(dense.smallest, rel=1e-3)  # the flat directions are others
    assert (dual.unexplained, dual.negative) == (dense.unexplained, dense.negative) == (0, 0)
    assert dual.smallest == pytest.approx(dense.smallest, rel=1e-6)
    assert dual.largest == pytest.approx(dense.largest, rel=1e-9)


def test_the_method_is_chosen_by_cost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("normscope.curvature.quotient.DENSE", 10)
    with Problem(classifier(), labelled(), mode="running", dtype=torch.float64) as problem:
        none = Directions(problem.point())
        products = Products(problem, "ggn")
        assert affordable(products)[0] == quotient(problem, none).method == "dual"
        assert affordable(products, sphere=True)[0] == affordable(Products(problem))[0] == "lanczos"
        for name, value in {"DUAL": 100, "WORK": 1e5}.items():
            with monkeypatch.context() as change:
                change.setattr(f"normscope.curvature.quotient.{name}", value)
                assert affordable(products)[0] == "lanczos"
        monkeypatch.setattr("normscope.core.memory.available", lambda: 1e4)
        assert affordable(products)[0] == "lanczos"
        with pytest.raises(NotEnoughMemoryError, match="needs about"):
            quotient(problem, none)
    odd = Problem(classifier(), labelled(), lambda out, labels: out.pow(3).mean())
    with odd, pytest.raises(InputError, match="convex"):
        quotient(odd, Directions(odd.point()), method="dual")


def test_rescaling_moves_the_raw_spectrum_and_not_the_one_on_the_spheres() -> None:
    found = []
    for factor in (1.0, 0.25):
        model = classifier(eps=1e-30)
        with torch.no_grad():
            model[0].weight.mul_(factor)
        with Problem(model, labelled(), dtype=torch.float64) as problem:
            raw = float(torch.linalg.eigvalsh(Products(problem).dense())[0])
            found.append((raw, quotient(problem, _known(problem), matrix="hessian", sphere=True)))
    assert found[0][0] != pytest.approx(found[1][0], rel=0.05)
    assert found[0][1].largest == pytest.approx(found[1][1].largest, rel=1e-8)
    assert found[0][1].smallest == pytest.approx(found[1][1].smallest, rel=1e-5)
    assert found[0][1].negative == found[1][1].negative


def test_the_spurious_curvature_of_the_parametrization_is_removed() -> None:
    with Problem(classifier(eps=1e-30), labelled(), dtype=torch.float64, parameters="0.weight") as problem:
        _, gradient = problem.gradient()
        known = Directions(problem.point(), row_groups(problem, ["0.weight"]))
        full = Products(problem).dense()
        projected = torch.stack([known.project(row) for row in full])
        projected = torch.stack([known.project(row) for row in projected.mT])
        rest = full - projected
        radial = known.basis()
        torch.testing.assert_close(full @ problem.point(), -gradient, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(rest, rest.mT)
        lengths = problem.split(problem.point())["0.weight"].norm(dim=1)
        slopes = problem.split(gradient)["0.weight"]
        blocks = [torch.linalg.eigvalsh(rest[4 * i : 4 * i + 4, 4 * i : 4 * i + 4]) for i in range(7)]
        for i, values in enumerate(blocks):
            expected = float(slopes[i].norm() / lengths[i])
            assert float(values[-1]) == pytest.approx(expected, rel=1e-6)
            assert float(values[0]) == pytest.approx(-expected, rel=1e-6)
        assert float((projected @ radial.mT).abs().max()) < 1e-10


def test_lanczos_does_not_take_a_negative_end_for_the_eigenvalue_nearest_to_zero() -> None:
    """An indefinite Hessian has its small eigenvalues inside the spectrum, where Lanczos sees none."""
    with Problem(classifier(), labelled(), dtype=torch.float64) as problem:
        directions = Directions(problem.point())
        dense, lanczos = (quotient(problem, directions, matrix="hessian", method=m) for m in ("dense", "lanczos"))
    assert dense.negative
    assert abs(dense.smallest) < dense.largest / 2
    assert dense.condition == pytest.approx(float(abs(dense.spectrum).max()) / abs(dense.smallest))  # type: ignore[arg-type]
    assert lanczos.largest == pytest.approx(dense.largest, rel=1e-3)
    assert math.isnan(lanczos.smallest)
    assert math.isnan(lanczos.condition)
    assert not lanczos.converged


def test_dead_units_are_unexplained_zeros() -> None:
    model = classifier(norm=False, activation=torch.nn.ReLU)
    with torch.no_grad():
        model[0].bias[2] = -100.0
    with Problem(model, labelled(200), dtype=torch.float64, parameters="0.*") as problem:
        found = quotient(problem, Directions(problem.point()))
    assert found.unexplained == 5  # four weights and a bias
