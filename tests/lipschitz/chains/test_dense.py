"""Regions as dense matrices."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from networks import Lambda, points, program_of, seeded
from normscope.lipschitz.chains.chain_form import ChainForm
from normscope.lipschitz.chains.dense import dense_form, fits
from normscope.lipschitz.chains.region import region_below


def _form(model: nn.Module, *shape: int) -> ChainForm:
    program = program_of(model, points(2, *shape))
    region = region_below(program.outputs[0][1], {a.id: a for a in program.atoms})
    assert fits(region)
    form = dense_form(region, (1.0,) * len(region.sources))
    assert form is not None
    return form


def test_batch_norm_is_folded_into_the_matrix_before_it() -> None:
    """With an error relative to every entry."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.LeakyReLU(0.25), nn.Linear(5, 3)))
    form = _form(model, 4)
    bn = model[1]
    folded = (bn.weight / (bn.running_var + bn.eps).sqrt())[:, None] * model[0].weight
    block = form.units[0].inputs[0]
    torch.testing.assert_close(block.value[0], folded.detach(), rtol=1e-14, atol=0.0)
    assert block.error is not None
    assert bool((block.error <= 1e-14 * block.value[0].abs()).all())
    assert (form.units[0].low, form.units[0].high) == (0.25, 1.0)
    assert form.target[1].error is None or float(form.target[1].error.max()) < 1e-14


@pytest.mark.parametrize("seed", range(3))
def test_every_map_is_that_of_autograd(seed: int) -> None:
    """Convolutions, pools, sums and slices between two activations."""

    def inner(s: Lambda, h: torch.Tensor) -> torch.Tensor:
        y = nn.functional.avg_pool2d(s.b(h), 2) + h[:, :, ::2, ::2]
        return s.c(y.flatten(1))

    model = seeded(
        Lambda(
            lambda s, x: inner(s, s.a(x).relu()),
            a=nn.Conv2d(1, 2, 3, padding=1),
            b=nn.Conv2d(2, 2, 3, padding=1),
            c=nn.Linear(8, 3),
        ),
        seed,
    )
    form = _form(model, 1, 4, 4)
    zero = torch.zeros(1, 2, 4, 4).double()
    whole = torch.autograd.functional.jacobian(lambda h: inner(model, h).flatten(), zero).reshape(3, 32)
    block = form.target[1]
    assert block.error is not None
    assert bool(((block.value[0] - whole).abs() <= block.error + 1e-14).all())
    assert float(block.error.max()) < 1e-12


def test_a_network_that_is_too_large_does_not_fit() -> None:
    """It is left to composition, or to a torus."""
    program = program_of(nn.Sequential(nn.Linear(4, 5_000), nn.ReLU(), nn.Linear(5_000, 2)).double(), points(2, 4))
    assert not fits(region_below(program.outputs[0][1], {a.id: a for a in program.atoms}))
