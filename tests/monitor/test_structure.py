"""What a model is made of: values do not matter, names, ties, shapes, dtypes do."""

from __future__ import annotations

import copy

import torch
from torch import nn
from torch.nn.utils import parametrizations, prune

from normscope.monitor.structure import difference, structure


def _net() -> nn.Sequential:
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 3))


def test_values_do_not_matter() -> None:
    model = _net()
    was = structure(model)
    with torch.no_grad():
        model[0].weight.mul_(2.0)
    model[3] = nn.Linear(4, 3)
    model.requires_grad_(False).eval()
    assert difference(was, structure(model)) == ""


def test_what_is_changed_is_named() -> None:
    def changed(change: object) -> str:
        model = _net()
        was = structure(model)
        change(model)  # type: ignore[operator]
        return difference(was, structure(model))

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
    was = structure(model)
    assert difference(was, structure(copy.deepcopy(model))) == ""
    model[1].weight = nn.Parameter(model[0].weight.detach().clone())
    assert difference(was, structure(model)) == "1.weight differs"
