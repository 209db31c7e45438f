"""The rows: each against a second evaluation from its parts, none of the certificates below the truth."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from normscope.analysis.bounds.folded_network import FoldedNetwork
from normscope.analysis.bounds.rows import ROWS, quantized
from normscope.analysis.bounds.run import bounds
from normscope.analysis.bounds.scores import class_scores
from normscope.generalization import clopper_pearson, margin_loss
from normscope.generalization.margins import margins

from .conftest import captured_of


@pytest.fixture(scope="module")
def table(trained: Any) -> Any:
    """Return the whole table."""
    model, train, test = trained
    return bounds(model, train=train, test=test, box=(0.0, 1.0))


def test_every_bound_has_its_row(table: Any) -> None:
    """None is missing, none appears twice."""
    names = [row.name for row in table.rows]
    assert len(names) == len(set(names)) == 25
    assert {name for name, _ in ROWS} - {"PAC-Bayes"} <= set(names)


def test_certificates_are_above_the_truth(table: Any) -> None:
    """For this network, its test error is below each, and a printed or sampled number is no certificate."""
    own = [r for r in table.rows if r.status == "certificate" and r.of == "this network"]
    assert len(own) >= 7
    for row in own:
        assert row.bound is not None
        assert row.bound.value >= table.truth["test_error"]
        assert row.bound.delta == pytest.approx(0.05)
    for row in table.rows:
        assert (row.status == "certificate") == (row.bound is not None and row.bound.kind.value == "probabilistic")
    assert table.rows["Theorem 20, sampled gradients"].status == "estimate"
    assert table.rows["Corollary 22, BatchNorm printed"].status == "scale only"


def test_held_out_and_margins(table: Any, trained: Any) -> None:
    """By hand from the model."""
    model, (x, y), (u, v) = trained
    with torch.no_grad():
        wrong = int((model(u).argmax(1) != v).sum())
        margin = margins(model(x).double(), y)
    assert table.rows["held-out"].bound.value == pytest.approx(clopper_pearson(wrong, 300, 0.05).value)
    row = table.rows["Golowich et al."]
    gamma = row.details["gamma"]
    assert row.details["margin_loss"] == pytest.approx(margin_loss(margin, gamma), abs=2e-3)
    assert row.bound.value > row.details["margin_loss"]


def test_rescaling_before_batch_norm_changes_nothing(table: Any, trained: Any) -> None:
    """The same network with other numbers: all but what is printed stays."""
    model, train, test = trained
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin[0].weight *= 50
        twin[0].bias *= 50
        twin[1].running_mean *= 50
        twin[1].running_var.copy_((twin[1].running_var + twin[1].eps) * 2500 - twin[1].eps)
    names = ["Theorem 20, repaired", "Corollary 22, folded", "Golowich et al.", "Bartlett et al.", "path norm"]
    again = bounds(twin, train=train, test=test, box=(0.0, 1.0), only=[*names, "Corollary 22, BatchNorm printed"])
    for name in names:
        assert again.rows[name].bound.log == pytest.approx(table.rows[name].bound.log, abs=0.05)
    printed = "Corollary 22, BatchNorm printed"
    moved = again.rows[printed].details["log10_network"] - table.rows[printed].details["log10_network"]
    assert moved == pytest.approx(0.0, abs=0.05)  # printed for one BatchNorm: 50 times the weight over 50 times sigma


@pytest.mark.parametrize("width", [2, 4])
def test_levels_and_bits(trained: Any, width: int) -> None:
    """At most ``2^w - 1`` values in each tensor; as many bits as numbers times width, and 32 for each scale."""
    folded = FoldedNetwork(captured_of(trained[0], 4, 2))
    tensors, bits = quantized(folded, width)
    assert all(tensors[n].unique().numel() <= 2**width - 1 for n in folded.weights)
    assert bits == sum(t.numel() * width + 32 for t in folded.weights.values())


def test_many_bits_change_little(trained: Any) -> None:
    """At 12 bits decisions stay; at 2 bits the scores are others."""
    model, (x, _), _ = trained
    captured = captured_of(model, 4, 2)
    own = class_scores(captured, captured.tensors, x)
    fine, coarse = (class_scores(captured, quantized(FoldedNetwork(captured), w)[0], x) for w in (12, 2))
    assert float((fine.argmax(1) == own.argmax(1)).double().mean()) > 0.98
    assert float((fine - own).abs().max()) < 0.1 * float((coarse - own).abs().max())
    assert torch.equal(own, class_scores(captured, captured.tensors, x))
