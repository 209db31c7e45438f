"""Regions of images on a torus."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, seeded
from normscope.lipschitz.chains.certificate import certify_form, certify_torus
from normscope.lipschitz.chains.dense import dense_form
from normscope.lipschitz.chains.region import Region, region_below
from normscope.lipschitz.chains.torus_region import TorusRegion, torus_region


def _residual(s: Lambda, x: Tensor) -> Tensor:
    h = s.n(s.a(x)).relu()
    h = (h + s.c(s.b(h).relu())).relu()
    short = F.pad(h[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1))
    h = (short + s.e(s.d(h).relu())).relu()
    return s.f(h.mean((2, 3)))


def _model(seed: int) -> nn.Module:
    def same(a: int, b: int, stride: int = 1) -> nn.Conv2d:
        return nn.Conv2d(a, b, 3, padding=1, stride=stride)

    layers = {"a": same(1, 2), "n": nn.BatchNorm2d(2), "b": same(2, 2), "c": same(2, 2), "d": same(2, 4, 2)}
    return seeded(Lambda(_residual, **layers, e=same(4, 4), f=nn.Linear(4, 3)), seed)


def _regions(model: nn.Module) -> tuple[Region, TorusRegion]:
    program = program_of(model, points(2, 1, 6, 6))
    region = region_below(program.outputs[0][1], {a.id: a for a in program.atoms})
    torus = torus_region(region)
    assert torus is not None
    return region, torus


@pytest.mark.turns(5)
@pytest.mark.parametrize("seed", range(2))
def test_it_bounds_the_network_that_it_embeds(seed: int) -> None:
    """No Jacobian of the zero-padded network exceeds it, nor its own dense chain by far."""
    model = _model(seed)
    region, torus = _regions(model)
    found = certify_torus(torus, (1.0,), seconds=2.0, progress=lambda text: None)
    form = dense_form(region, (1.0,))
    assert found is not None
    assert form is not None
    dense = certify_form(form, seconds=0.5)
    assert dense is not None
    worst = max(jacobian_norm(model, points(1, 1, 6, 6, seed=i) * 10.0**e) for i in range(6) for e in (-1, 0, 1))
    assert worst <= math.exp(found[0])
    assert -0.05 < found[0] - dense[0] < 1.0


@pytest.mark.turns(5)
@pytest.mark.parametrize("seed", range(2))
def test_it_does_not_move_when_channels_are_scaled(seed: int) -> None:
    """By factors over six orders of magnitude that are no powers of two, between layers and in BatchNorm."""
    model = _model(seed)
    generator = torch.Generator().manual_seed(seed)
    found = []
    for _ in range(2):
        given = certify_torus(_regions(model)[1], (1.0,), seconds=1.0, progress=lambda text: None)
        assert given is not None
        found.append(given[0])
        with torch.no_grad():
            for before, after in (("b", "c"), ("d", "e")):
                first, second = getattr(model, before), getattr(model, after)
                factor = 10.0 ** (6 * torch.rand(len(first.weight), generator=generator) - 3)
                first.weight.mul_(factor[:, None, None, None])
                first.bias.mul_(factor)
                second.weight.div_(factor[:, None, None])
            factor = 10.0 ** (6 * torch.rand(2, generator=generator) - 3)
            for tensor in (model.a.weight, model.a.bias, model.n.running_mean):
                tensor.mul_(factor.reshape(-1, *(1,) * (tensor.ndim - 1)))
            model.n.running_var.add_(model.n.eps).mul_(factor.square()).sub_(model.n.eps)
    assert found[1] == pytest.approx(found[0], abs=1e-3)


def test_the_symbols_are_those_of_the_circular_network() -> None:
    """All activations open, on the torus itself: the largest singular value over all frequencies."""
    model = _model(0)
    _, torus = _regions(model)
    m = torus.cells
    form = torus.form(torus.frequencies(), (1.0,))
    values = {0: torch.eye(form.sources[0], dtype=torch.complex128).expand(form.blocks, -1, -1)}
    for k, unit in enumerate(form.units):
        values[k + 1] = sum(block.value @ values[j] for j, block in unit.inputs.items())
    whole = sum(block.value @ values[j] for j, block in form.target.items())
    largest = float(torch.linalg.matrix_norm(whole, 2).max())

    def circular(layer: nn.Conv2d, x: Tensor) -> Tensor:
        return F.conv2d(F.pad(x, (1, 1, 1, 1), mode="circular"), layer.weight, stride=layer.stride)

    def network(x: Tensor) -> Tensor:
        scale = model.n.weight / (model.n.running_var + model.n.eps).sqrt()
        h = circular(model.a, x) * scale[:, None, None]
        h = h + circular(model.c, circular(model.b, h))
        h = F.pad(h[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1)) + circular(model.e, circular(model.d, h))
        return F.linear(h.sum((2, 3)) / 9.0, model.f.weight)  # the mean over the window of 3 by 3

    zero = torch.zeros(1, 1, 2 * m, 2 * m).double()
    jacobian = torch.autograd.functional.jacobian(network, zero).reshape(3, -1)
    assert largest == pytest.approx(float(torch.linalg.matrix_norm(jacobian, 2)), rel=1e-10)


def test_other_networks_are_not_taken_for_one() -> None:
    """A head that reads places one by one, and slopes that are never zero."""
    for end, activation in ((nn.Linear(72, 2), nn.ReLU()), (nn.Linear(2, 2), nn.LeakyReLU(0.5))):

        def function(s: Lambda, x: Tensor) -> Tensor:
            h = s.g(s.a(x))
            return s.f(h.flatten(1) if s.f.in_features == 72 else h.mean((2, 3)))

        model = seeded(Lambda(function, a=nn.Conv2d(1, 2, 3, padding=1), f=end, g=activation))
        program = program_of(model, points(2, 1, 6, 6))
        assert torus_region(region_below(program.outputs[0][1], {a.id: a for a in program.atoms})) is None


def test_the_error_of_the_readout_covers_the_rounding_of_its_own_product() -> None:
    """The weights of the mean times the number of cells, in exact arithmetic, lie within the error."""
    _, torus = _regions(_model(0))
    readout = {j: (matrix / 3, torch.zeros_like(each)) for j, (matrix, each) in torus.readout.items()}
    target = replace(torus, readout=readout).form([(0, 0)], (1.0,)).target
    for j, (matrix, _) in readout.items():
        count = torus.phases[j] ** 2
        wide = matrix.repeat_interleave(count, 1).flatten().tolist()
        block = target[j]
        assert bool((block.error >= 2.0**-53 * block.value[0].abs()).all())
        for exact, value, error in zip(
            wide, block.value[0].real.flatten().tolist(), block.error.flatten().tolist(), strict=True
        ):
            assert abs(Fraction(exact) * torus.cells - Fraction(value)) <= Fraction(error)
