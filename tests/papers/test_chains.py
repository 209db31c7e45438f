"""Networks of the definitions."""

from __future__ import annotations

import torch

from normscope.papers.chains import chain, of_weight, padded_identity, standardized
from normscope.papers.measure import gaussian


def test_a_chain_is_the_network_of_the_papers() -> None:
    weights = [gaussian(3, 2, 3), gaussian(4, 4, 2)]
    x = gaussian(5, 3)
    expected = torch.relu(weights[1] @ (2 * torch.relu(weights[0] @ x)))
    assert torch.allclose(2 * chain(weights)(x), expected)
    doubled = chain(weights, lambda y, k: y * (k + 1))
    assert torch.allclose(doubled(x), torch.relu(2 * weights[1] @ torch.relu(weights[0] @ x)))


def test_a_network_as_a_function_of_one_weight() -> None:
    weights, x = [gaussian(6, 2, 3), gaussian(7, 4, 2)], gaussian(8, 3)
    assert torch.equal(of_weight(chain, weights, 1, x)(2 * weights[1]), 2 * chain(weights)(x))


def test_small_parts() -> None:
    assert padded_identity(2, 3).tolist() == [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    y = standardized(gaussian(9, 50, 3))
    assert float(y.mean(0).abs().max()) < 1e-14
    assert torch.allclose(y.var(0, unbiased=False), torch.ones(3, dtype=torch.float64))
