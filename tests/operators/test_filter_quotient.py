"""Weights whose filters are divided by their own spread or length, written in ways of one's own."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import Tensor, nn
from torch.nn import functional as F

from networks import points, program_of, seeded


def _centred(w: Tensor) -> Tensor:
    return w - w.mean((1, 2, 3), keepdim=True)


def _lengths(w: Tensor) -> Tensor:
    return w.flatten(1).norm(dim=1).view(-1, 1, 1, 1)


FORMS: dict[str, tuple[Callable[[Tensor], Tensor], str | None]] = {
    "length of the centred filter": (lambda w: _centred(w) / (_lengths(_centred(w)) + 1e-5), "weight_standardization"),
    "centred and made unit vectors": (
        lambda w: F.normalize(_centred(w).flatten(1)).view_as(w),
        "weight_standardization",
    ),
    "deviation and a gain": (
        lambda w: 2 * _centred(w) / (w.flatten(1).std(1).view(-1, 1, 1, 1) + 1e-4),
        "weight_standardization",
    ),
    "length and a stabilizer": (lambda w: w / (_lengths(w) + 1e-5), "weight_norm"),
    "root of the sum of squares": (
        lambda w: w / (w.square().sum((1, 2, 3), keepdim=True).sqrt() + 1e-6),
        "weight_norm",
    ),
    "length of the whole weight": (lambda w: w / (w.norm() + 1e-5), "weight_norm"),
    "length of another filter": (lambda w: w / (_lengths(w).flip(0) + 1e-5), None),
    "root of the length": (lambda w: w / (_lengths(w).sqrt() + 1e-5), None),
    "largest entry": (lambda w: w / (w.abs().amax((1, 2, 3), keepdim=True) + 1e-5), None),
}


@pytest.mark.parametrize("name", FORMS)
def test_it_is_seen_and_nothing_else(name: str) -> None:
    """The kind is told; a quotient that is neither has none."""
    form, kind = FORMS[name]

    class Divided(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, form(self.weight), self.bias)

    program = program_of(seeded(Divided(3, 4, 3)), points(2, 3, 6, 6))
    assert [site.kind for site in program.sites] == ([] if kind is None else [kind])
