"""Global response normalization as it stands in ConvNeXt v2."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from networks import jacobian_norm, points, program_of, upper_of
from operators.refute import model_of, refuted


def _response(x: Tensor) -> Tensor:
    size = x.norm(p=2, dim=(1, 2), keepdim=True)
    return x * (size / (size.mean(-1, keepdim=True) + 1e-6))


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_nothing_refutes_it(channels: int) -> None:
    """At many scales, with the constant of C channels."""
    checked = refuted(_response, 2, 2, channels)
    assert checked.opaque == []
    assert checked.upper["everywhere"] < math.inf


def test_with_scale_shift_and_skip() -> None:
    """Gamma x N(x) + beta + x, as the block has it."""
    gamma, beta = points(4), points(4, seed=1)
    function = lambda x: gamma * _response(x) + beta + x  # noqa: E731
    checked = refuted(function, 2, 2, 4)
    upper = math.exp(checked.upper["everywhere"])
    core = upper_of(program_of(model_of(_response), points(2, 2, 2, 4)))
    assert upper <= 1 + float(gamma.abs().max()) * core + 1e-9
    (site,) = program_of(model_of(function), points(2, 2, 2, 4)).sites
    assert site.gamma is not None
    assert torch.equal(site.gamma.flatten(), gamma)


def test_one_channel_is_nearly_the_identity() -> None:
    """N = 1 up to eps: the Jacobian is close to one, and the bound at least that."""
    x = points(1, 3, 3, 1)
    upper = upper_of(program_of(model_of(_response), torch.cat([x, x])))
    assert jacobian_norm(model_of(_response), x) == pytest.approx(1.0, abs=1e-5)
    assert upper >= 1.0
