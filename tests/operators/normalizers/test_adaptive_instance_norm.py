"""Adaptive instance normalization: seen in every form; bounded where its scale is."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import Lambda, jacobian_norm, points, program_of, seeded, upper_of
from normscope.operators.normalizers.adaptive_instance_norm import adaptive_instance_norm_constants
from operators.normalizers.published import AdaIN, instance_std


def _bounded(s: Lambda, x: Tensor) -> Tensor:
    """The style's statistics through a bounded function, times the normalized content."""
    content, style = x[:, :2], x[:, 2:]
    scale = torch.sigmoid(style.mean((2, 3), keepdim=True))
    return scale * (content - content.mean((2, 3), keepdim=True)) / instance_std(content, 1e-2)


def _layer(s: Lambda, x: Tensor) -> Tensor:
    """LayerNorm whose scale depends on the input."""
    return F.layer_norm(x, (4,), torch.tanh(s.f(x).mean(0)), None, 1e-2)


MODELS: dict[str, tuple[nn.Module, tuple[int, ...], str, bool]] = {
    "scale of batch_norm": (AdaIN("batch", 4), (4, 3, 3), "adaptive_instance_norm", True),
    "statistics of the style": (AdaIN("statistics", 4), (4, 3, 3), "adaptive_instance_norm", False),
    "a product": (AdaIN("product", 4), (4, 3, 3), "instance_norm", True),
    "a bounded scale first": (Lambda(_bounded), (4, 3, 3), "adaptive_instance_norm", True),
    "layer_norm": (Lambda(_layer, f=nn.Linear(4, 4)), (4,), "layer_norm", True),
}


@pytest.mark.parametrize("name", MODELS)
def test_it_is_seen_and_its_bound_holds(name: str) -> None:
    """One normalizer each, and a finite bound of the whole where the scale is bounded."""
    model, shape, kind, bounded = MODELS[name]
    model = seeded(model)
    program = program_of(model, points(2, *shape))
    assert [s.kind for s in program.sites] == [kind]
    assert not program.opaque
    upper = upper_of(program)
    assert (upper < math.inf) == bounded
    for size in (1e-5, 1e-2, 0.1, 1.0, 10.0):
        assert jacobian_norm(model, points(1, *shape, seed=3) * size) <= upper * (1 + 1e-9)


def test_it_has_no_bound_of_its_own() -> None:
    """With the style's own standard deviation as the scale the Jacobian grows with the style."""
    model = seeded(AdaIN("statistics", 4))
    (site,) = program_of(model, points(2, 4, 3, 3)).sites
    assert adaptive_instance_norm_constants(site).proved.log == math.inf
    size = torch.ones(1, 4, 1, 1, dtype=torch.float64)
    size[:, 2:] = 1e4
    x = points(1, 4, 3, 3)
    assert jacobian_norm(model, x * size) > 1e3 * jacobian_norm(model, x)
