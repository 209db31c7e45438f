"""LayerNorm near a constant input: the numbers of the claim, against dense Jacobians."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.core.errors import InputError
from normscope.papers.than2025.extremal import Extremal, layer_norm_blow_up


def _norm(net: Extremal) -> float:
    jacobian = torch.autograd.functional.jacobian(net.module, net.point)
    return float(torch.linalg.matrix_norm(jacobian, 2))


@pytest.mark.parametrize(("depth", "known"), [(1, 306.1862), (2, 90773.05), (3, 2.691090e7), (4, 7.9781e9)])
def test_known_numbers(depth: int, known: float) -> None:
    """Width 16 and eps 1e-5; the un-normalized network has the constant one."""
    net = layer_norm_blow_up(16, depth)
    assert net.attained.value == pytest.approx(known, rel=1e-5)
    assert _norm(net) == pytest.approx(net.attained.value, rel=1e-8)
    assert _norm(net) <= net.constant.value
    assert net.constant.value == pytest.approx(1e-5 ** (-depth / 2), rel=1e-12)


@pytest.mark.parametrize("width", [2, 3, 7])
@pytest.mark.parametrize("eps", [1e-5, 1e-2, 1.0])
def test_any_width_and_eps(width: int, eps: float) -> None:
    """The closed form is approached."""
    net = layer_norm_blow_up(width, 3, eps)
    expected = (1 - 1 / width) ** 2.5 * eps**-1.5
    assert net.attained.value == pytest.approx(expected, rel=1e-12)
    assert _norm(net) == pytest.approx(expected, rel=1e-6)


def test_with_the_identity_it_is_exact() -> None:
    """At zero, ``eps^(-K/2)``."""
    net = layer_norm_blow_up(6, 3, activation="identity")
    assert _norm(net) == pytest.approx(net.constant.value, rel=1e-12)
    assert net.attained.log <= net.constant.log <= net.attained.log + 1e-12
    moved = torch.autograd.functional.jvp(net.module, net.point, net.direction)[1]
    assert float(torch.linalg.vector_norm(moved)) == pytest.approx(net.constant.value, rel=1e-9)


def test_far_past_the_range_of_floats() -> None:
    """Two thousand layers: logarithms, and the point is zero since no float is small enough."""
    net = layer_norm_blow_up(4, 2000)
    assert net.constant.log10 == pytest.approx(5000.0, rel=1e-12)
    assert net.attained.log10 == pytest.approx(5000.0 + 1999.5 * math.log10(0.75), rel=1e-12)
    assert not net.point.any()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"width": 1, "depth": 2}, "at least 2"),
        ({"width": 3, "depth": 0}, "at least 1"),
        ({"width": 3, "depth": 2, "eps": 0.0}, "eps > 0"),
        ({"width": 3, "depth": 2, "activation": "tanh"}, "relu or identity"),
    ],
)
def test_wrong_arguments(arguments: dict[str, int], text: str) -> None:
    """Each says what holds and what came."""
    with pytest.raises(InputError, match=text):
        layer_norm_blow_up(**arguments)  # type: ignore[arg-type]
