"""Linear maps between images as stencils."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import Lambda, points, program_of, seeded
from normscope.lipschitz.chains.stencil import Stencil, stencils
from normscope.operators.expression import Expr


def _applied(stencil: Stencil, x: Tensor, size: int) -> Tensor:
    """Return what a stencil makes of an image of zeros outside, place by place."""
    out = torch.zeros(1, next(iter(stencil.taps.values())).shape[0], size, size, dtype=torch.float64)
    for (dy, dx), tap in stencil.taps.items():
        for a in range(size):
            for b in range(size):
                p, q = a * stencil.stride[0] + dy, b * stencil.stride[1] + dx
                if 0 <= p < x.shape[2] and 0 <= q < x.shape[3]:
                    out[0, :, a, b] += tap @ x[0, :, p, q]
    return out


def _end(function: object, **layers: nn.Module) -> tuple[nn.Module, Expr]:
    model = seeded(Lambda(function, **layers))  # type: ignore[arg-type]
    return model, program_of(model, points(2, 2, 6, 6)).outputs[0][1]


def _shortcut(s: Lambda, x: Tensor) -> Tensor:
    return F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, 1, 1))


@pytest.mark.parametrize(
    ("function", "size"),
    [
        (lambda s, x: s.n(s.a(x)), 6),
        (lambda s, x: s.b(x), 3),
        (lambda s, x: s.b(s.m(x)), 3),
        (lambda s, x: s.g(x), 6),
        (_shortcut, 3),
    ],
)
def test_a_stencil_does_what_the_map_does(function: object, size: int) -> None:
    """Convolution and BatchNorm, stride, a factor before, groups, and subsampling with padded channels."""
    layers = {"a": nn.Conv2d(2, 3, 3, padding=1), "n": nn.BatchNorm2d(3), "m": nn.BatchNorm2d(2)}
    layers |= {"b": nn.Conv2d(2, 4, 3, stride=2, padding=1), "g": nn.Conv2d(2, 4, 3, padding=1, groups=2)}
    model, expr = _end(function, **layers)
    found = stencils(expr)
    assert found is not None
    (stencil,) = found.values()
    x = points(1, 2, 6, 6, seed=4)
    linear = model(x) - model(torch.zeros_like(x))
    torch.testing.assert_close(_applied(stencil, x, size), linear.detach(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "function",
    [
        lambda s, x: s.a(s.a(x)),  # the padding of the second would matter
        lambda s, x: x.flip(3),
        lambda s, x: x.transpose(2, 3),
        lambda s, x: x * torch.arange(6.0).double(),
        lambda s, x: F.pad(x, (1, 1, 1, 1), mode="circular")[:, :, 1:-1, 2:],
    ],
)
def test_what_is_no_stencil_is_not_taken_for_one(function: object) -> None:
    """Maps that are not the same at every place."""
    _, expr = _end(function, a=nn.Conv2d(2, 2, 3, padding=1))
    assert stencils(expr) is None
