"""Helpers of the views."""

from __future__ import annotations

import torch

from normscope.monitor.view import channel_variance, gradients_of, linear_map, trained


def test_variance_of_any_axis_and_precision() -> None:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    truth = x.double().movedim(1, 0).reshape(4, -1).var(1, correction=0).float()
    assert torch.allclose(channel_variance(x, 1), truth, rtol=1e-5)
    assert channel_variance(x.bfloat16(), -1).dtype == torch.float32
    assert channel_variance(x[0, 0], 0).tolist() == [0.0] * 5


def test_leaves_share_memory_and_only_wanted_ones_are_differentiated() -> None:
    a, b = torch.ones(2), torch.ones(2)
    leaves = trained({"a": a, "b": b}, {"a"})
    assert leaves["a"].data_ptr() == a.data_ptr()
    assert set(gradients_of((leaves["a"] * leaves["b"]).sum(), leaves)) == {"a"}
    assert gradients_of(None, leaves) == {}
    assert gradients_of(torch.zeros(()), leaves) == {}


def test_a_map_and_its_adjoint_belong_together() -> None:
    generator = torch.Generator().manual_seed(0)
    kernel = torch.randn(3, 2, 3, 3, generator=generator, dtype=torch.float64)
    function = lambda x: torch.nn.functional.conv2d(x, kernel, stride=2, padding=1)  # noqa: E731
    found = linear_map(function, (1, 2, 5, 5), (1, 3, 3, 3), torch.float64)
    x = torch.randn(1, 2, 5, 5, generator=generator, dtype=torch.float64)
    y = torch.randn(1, 3, 3, 3, generator=generator, dtype=torch.float64)
    assert torch.allclose((found.apply(x) * y).sum(), (x * found.adjoint(y)).sum())
