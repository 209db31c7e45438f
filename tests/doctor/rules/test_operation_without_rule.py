"""NS003: operations without a rule."""

from __future__ import annotations

import torch

from checking import found, noise
from networks import Lambda


def test_an_operation_nobody_knows_is_told_once() -> None:
    """A Bessel function, used twice."""
    model = Lambda(lambda s, x: torch.special.bessel_j0(x) + torch.special.bessel_j0(2 * x))
    (one,) = found("NS003", model, noise(3, 4))
    assert one.evidence["uses"] == 2


def test_a_known_one_is_not() -> None:
    """The hyperbolic tangent."""
    assert found("NS003", Lambda(lambda s, x: x.tanh()), noise(3, 4)) == []
