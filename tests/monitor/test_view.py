"""Helpers of the views."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from normscope.monitor.view import (
    channel_moments,
    gradients_of,
    layout_difference,
    linear_map,
    tensor_layout,
)


def test_variance_of_any_axis_and_precision() -> None:
    x = torch.randn(3, 4, 5, generator=torch.Generator().manual_seed(0))
    truth = x.double().movedim(1, 0).reshape(4, -1).var(1, correction=0).float()
    assert torch.allclose(channel_moments(x, 1)[1], truth, rtol=1e-5)
    assert channel_moments(x.bfloat16(), -1)[1].dtype == torch.float32
    assert channel_moments(x[0, 0], 0)[1].tolist() == [0.0] * 5


def test_only_wanted_leaves_are_differentiated() -> None:
    a, b = torch.ones(2), torch.ones(2)
    leaves = {"a": a.requires_grad_(), "b": b}
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


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def test_values_do_not_matter() -> None:
    model = _net()
    was = tensor_layout(model)
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    model[3] = nn.Linear(4, 3)
    model.requires_grad_(False).eval()
    assert layout_difference(was, tensor_layout(model)) == ""


def test_what_is_changed_is_named() -> None:
    def changed(change: object) -> str:
        model = _net()
        was = tensor_layout(model)
        change(model)  # type: ignore[operator]
        return layout_difference(was, tensor_layout(model))

    pruned = changed(lambda m: prune.l1_unstructured(m[0], "weight", amount=0.5))
    assert "no longer has 0.weight" in pruned
    assert "gained 0.weight_orig, 0.weight_mask" in pruned
    assert "0.parametrizations.weight.original0" in changed(lambda m: parametrizations.weight_norm(m[0]))
    assert "gained 4.weight, 4.bias" in changed(lambda m: m.append(nn.Linear(3, 3)))
    assert "0.weight differs" in changed(lambda m: m.__setitem__(0, nn.Linear(5, 4)))
    assert "1.running_mean" in changed(lambda m: m.__setitem__(1, nn.Identity()))
    assert "differ" in changed(lambda m: m.double())


def test_a_tie_that_is_cut_is_a_difference() -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    model[1].weight = model[0].weight
    was = tensor_layout(model)
    assert layout_difference(was, tensor_layout(copy.deepcopy(model))) == ""
    model[1].weight = nn.Parameter(model[0].weight.detach().clone())
    assert layout_difference(was, tensor_layout(model)) == "1.weight differs"
