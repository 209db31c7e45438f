"""The surrogate: its code is decodable in as many bits, its weights are on their levels, and the study runs."""

from __future__ import annotations

import math

import pytest
import torch

from normscope.papers.study import run_study
from normscope.papers.than2025.surrogate_study import QuantizedNetwork, code_bits, components_of


def test_bits_are_those_of_the_counts() -> None:
    """Entropy by hand for a skewed sample, plus a table of counts; at least the log of the number of arrangements."""
    codes = torch.tensor([0] * 90 + [1] * 8 + [-1] * 2)
    entropy = -sum(n * math.log2(n / 100) for n in (90, 8, 2))
    assert code_bits(codes, 1) == pytest.approx(entropy + 2 + 2 * 7)
    arrangements = math.log2(math.factorial(100) // (math.factorial(90) * math.factorial(8) * math.factorial(2)))
    assert code_bits(codes, 1) >= arrangements


def test_weights_are_on_their_levels() -> None:
    """Scores depend on the levels alone: tiny changes of the weights change nothing, and gradients pass."""
    source = torch.Generator().manual_seed(0)
    net = QuantizedNetwork(6, 5, 3, 1, source)
    z = torch.randn(20, 6, generator=source)
    with torch.no_grad():
        before, bits = net(z), net.bits()
        net.first[0, 0] += 1e-7
        after = net(z)
    assert torch.allclose(before, after, atol=1e-4)
    net(z).square().sum().backward()
    assert net.first.grad is not None
    assert float(net.first.grad.abs().sum()) > 0
    assert 0 < bits < 32 * (30 + 15 + 5)


def test_components_are_white() -> None:
    """On the inputs they were taken from: variance one, no correlation."""
    x = torch.randn(500, 8, generator=torch.Generator().manual_seed(1)) @ torch.randn(
        8, 8, generator=torch.Generator().manual_seed(2)
    )
    z = components_of(x, 4)(x)
    assert torch.allclose(z.T @ z / 500, torch.eye(4), atol=1e-3)


@pytest.mark.turns(10)
def test_study() -> None:
    """The bound is at least its parts; on few digits it need not say anything."""
    study = run_study("surrogate", "smoke")
    numbers = study.evidence[0].measured
    assert (
        numbers["bound on the network's error"] >= numbers["bound on the surrogate's error"] + numbers["disagreement"]
    )
    assert study.evidence[1].agrees is True
    assert len(study.charts) == 2
