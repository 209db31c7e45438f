"""The radial gradient that eps leaves is predicted for every normalizer."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from normscope.geometry.candidates.scales import Scales
from normscope.geometry.certificate import coefficients_of
from normscope.geometry.discover import symmetry
from normscope.geometry.labelling import Labelling
from normscope.geometry.stabilizers import stabilizer_breaking
from symmetric_networks import mlp, randomized


@pytest.mark.parametrize(
    "norm",
    [
        lambda h: nn.BatchNorm1d(h, eps=0.05),
        lambda h: nn.LayerNorm(h, eps=0.05),
        lambda h: nn.RMSNorm(h, eps=0.05),
        lambda h: nn.GroupNorm(2, h, eps=0.05),
    ],
)
def test_breaking_is_predicted(norm: Callable[[int], nn.Module]) -> None:
    torch.manual_seed(0)
    model = randomized(mlp(lambda h: [norm(h)], nn.Tanh, 8))
    found = symmetry(model, torch.randn(32, 3).double(), batch=32)
    family = found.scale_invariant[0].family
    assert isinstance(family, Scales)
    walk = Labelling(found.function)
    walk.run()
    ((predicted, measured),) = stabilizer_breaking(found.function, walk, [(family, coefficients_of(family))])
    assert abs(measured) > 1e-4
    # The bias before BatchNorm, LayerNorm and GroupNorm is scaled, too, and centred away: the formula is exact.
    assert predicted == pytest.approx(measured, rel=1e-6)
