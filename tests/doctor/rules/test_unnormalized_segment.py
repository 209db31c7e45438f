"""NS502 against dense singular values: products without a normalizer."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from checking import found, noise
from normscope.core.finding import Severity
from normscope.doctor.rules.unnormalized_segment import segments
from normscope.doctor.subject import examine
from normscope.lipschitz.quick_norms import RoughNorms


def _chain(norm: float, depth: int, normalizer: bool = False) -> nn.Module:
    """Return linear layers of a given norm with ReLUs between them."""
    layers: list[nn.Module] = []
    for i in range(depth):
        layer = nn.Linear(6, 6, bias=False)
        with torch.no_grad():
            drawn = noise(6, 6, seed=i)
            layer.weight.copy_(norm * drawn / torch.linalg.matrix_norm(drawn, 2))
        layers += [layer, *([nn.LayerNorm(6)] if normalizer else []), nn.ReLU()]
    return nn.Sequential(*layers).eval()


def test_a_vanishing_product_is_told_with_the_best_place() -> None:
    """Ten layers of norm 0.3: the middle one splits best; the number is the product of the norms."""
    (one,) = found("NS502", _chain(0.3, 10), noise(4, 6))
    assert one.severity is Severity.WARNING
    assert one.evidence["log10"] == pytest.approx(10 * math.log10(0.3), abs=1e-3)
    assert one.evidence["log10_after"] == pytest.approx(5 * math.log10(0.3), abs=1e-3)
    assert one.place == "8"  # the fifth of the layers 0, 2, 4, ...


def test_an_exploding_product_is_a_remark() -> None:
    """An upper bound proves no explosion."""
    (one,) = found("NS502", _chain(24.0, 8), noise(4, 6))
    assert one.severity is Severity.INFO


def test_rough_norms_lie_below() -> None:
    """``||W||_F / sqrt(rank)`` against dense singular values."""
    subject = examine(_chain(3.0, 1), noise(4, 6))
    (rough,), (exact,) = segments(subject, RoughNorms()), segments(subject)
    weight = subject.parameters["0.weight"].detach().double()
    assert 10**rough.log10 == pytest.approx(float(weight.norm()) / math.sqrt(6), rel=1e-6)
    assert 10**exact.log10 == pytest.approx(float(torch.linalg.matrix_norm(weight, 2)), rel=1e-3)


def test_normalizers_end_a_stretch() -> None:
    """The same layers with normalizers, and ordinary ones without, are in order."""
    assert found("NS502", _chain(0.3, 10, normalizer=True), noise(4, 6)) == []
    assert found("NS502", _chain(1.0, 10), noise(4, 6)) == []


def test_a_stretch_has_the_norm_of_its_layer() -> None:
    """Layer by layer between normalizers, by dense singular values."""
    model = _chain(3.0, 3, normalizer=True)
    logs = [s.log10 for s in segments(examine(model, noise(4, 6)))]
    assert logs[:3] == pytest.approx([math.log10(3.0)] * 3, abs=1e-3)
