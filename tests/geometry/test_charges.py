"""Conserved numbers: those of LayerNorm and of ReLU by hand, exact under steps, constant under flows."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.geometry.charges import Charge, charges
from normscope.geometry.discover import Symmetries, symmetry
from symmetric_networks import mlp, randomized


def found(norm: type[nn.Module], activation: type[nn.Module], seed: int = 0) -> Symmetries:
    """Return the symmetries of a small network."""
    torch.manual_seed(seed)
    model = randomized(mlp(lambda h: [norm(h)], activation))
    return symmetry(model, torch.randn(32, 3).double(), batch=32, loss="cross_entropy")


def _of(rows: list[Charge], *parameters: str) -> list[Charge]:
    return [row for row in rows if set(parameters) == set(row.parameters)]


@pytest.mark.parametrize("law", ["steps", "flow"])
def test_column_sums_before_layer_norm_stay(law: str) -> None:
    """1'W and 1'b, which are constant directions: conserved by every step, not only by flows."""
    symmetries = found(nn.LayerNorm, nn.Tanh)
    rows = charges(symmetries, law=law, rate=0.3, steps=5, exact=True)
    weight, bias = symmetries.function.point["0.weight"], symmetries.function.point["0.bias"]
    sums = [row for row in rows if row.form == "linear" and row.parameters in (("0.weight",), ("0.bias",))]
    wanted = sorted([*weight.sum(0).tolist(), float(bias.sum())])
    # A direction may be scaled: the ones of a column over their norm.
    ratio = {round(abs(a / b), 9) for a, b in zip(sorted(row.start for row in sums), wanted, strict=True)}
    assert len(sums) == 4
    assert len(ratio) == 1
    assert all(abs(row.difference) < 1e-12 for row in sums)


@pytest.mark.turns(2)
@pytest.mark.parametrize("law", ["steps", "flow"])
def test_rescalings_through_relu(law: str) -> None:
    """gamma^2 + beta^2 - ||column||^2 of every unit, by hand; a step moves it by eta^2 of the same of the gradient."""
    symmetries = found(nn.BatchNorm1d, nn.ReLU)
    rows = charges(symmetries, law=law, rate=0.3, steps=5, exact=True)
    point = symmetries.function.point
    across = _of(rows, "1.weight", "1.bias", "3.weight")
    by_hand = point["1.weight"] ** 2 + point["1.bias"] ** 2 - point["3.weight"].square().sum(0)
    assert sorted(row.start for row in across) == pytest.approx(sorted(by_hand.tolist()), rel=1e-9)
    for row in rows:
        assert abs(row.difference) < (1e-12 if law == "steps" else 1e-8), row
        assert (row.measured != row.start) or row.form == "linear" or law == "flow"


def test_eps_breaks_what_it_should_and_rotations_have_none() -> None:
    """With a large eps the length of a row is no longer conserved; a network without symmetry has no charge."""
    torch.manual_seed(0)
    model = randomized(mlp(lambda h: [nn.BatchNorm1d(h, eps=0.5)], nn.Tanh))
    symmetries = symmetry(model, torch.randn(32, 3).double(), batch=32, loss="cross_entropy")
    broken = [row for row in charges(symmetries, rate=0.3, steps=5) if row.kind == "scale"]
    assert max(abs(row.difference) for row in broken) > 1e-6
    assert charges(symmetry(mlp(lambda h: [], nn.Tanh), torch.randn(8, 3))) == []
    with pytest.raises(InputError, match="law 'steps' or 'flow'"):
        charges(symmetries, law="adam")
