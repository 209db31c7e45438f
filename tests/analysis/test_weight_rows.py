"""One row for each weight: constants of a chain in closed form, and who decides whether a printed number is a bound."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import normscope
from networks import Lambda, points, seeded, spectral_norm
from normscope.analysis.weight_lipschitz import _both, _decided
from normscope.core.value import Kind, Value
from normscope.lipschitz.weights.result import WeightRow

X = points(5, 4)
NORM = float(X.norm(dim=1).max())
FINE = 2e-4


def _rows(model: nn.Module, **settings: object) -> dict[str, WeightRow]:
    return {row.name: row for row in normscope.weight_lipschitz(model, X, stacked=False, points=5, **settings).weights}


def _chain() -> nn.Sequential:
    model = nn.Sequential(nn.Linear(4, 6, bias=False), nn.ReLU(), nn.Linear(6, 3, bias=False))
    return seeded(model)  # type: ignore[return-value]


def test_a_single_layer_has_the_norm_of_its_input() -> None:
    """``||h, W|| = ||x||`` and ``||h, b|| = 1``: proved, printed and attained are one number."""
    row = _rows(seeded(nn.Linear(4, 3)))
    weight, bias = row["weight"], row["bias"]
    assert (weight.shape, weight.uses, weight.operation, weight.effective) == ((3, 4), 1, "matrix", False)
    for value in (weight.best, weight.attained, weight.input_norm, weight.printed):
        assert value is not None
        assert value.value == pytest.approx(NORM, rel=1e-9)
    assert weight.printed_is_bound is True
    assert bias.best is not None
    assert bias.attained is not None
    assert bias.best.value == pytest.approx(1.0, rel=1e-9)
    assert bias.attained.value == pytest.approx(1.0, rel=1e-9)
    assert weight.outputs["global"].value == pytest.approx(1.0)


def test_the_constants_of_a_chain() -> None:
    """Theorem 12 as printed, and the product of all other norms, by singular values."""
    model = _chain()
    first, second = (spectral_norm(model[i].weight.detach()) for i in (0, 2))
    hidden = float(torch.relu(model[0](X)).detach().norm(dim=1).max())
    rows = _rows(model)
    for name, activation, after, before in (("0.weight", NORM, second, 1.0), ("2.weight", hidden, 1.0, first)):
        row = rows[name]
        assert row.printed is not None
        assert row.unnormalized is not None
        assert row.best is not None
        assert row.printed.value == pytest.approx(activation * after, rel=FINE)
        assert row.printed.kind is Kind.PRINTED
        assert row.unnormalized.value == pytest.approx(NORM * after * before, rel=FINE)
        assert row.outputs["global"].value == pytest.approx(after, rel=FINE)
        assert row.best.value == pytest.approx(activation * after, rel=FINE)


def test_the_printed_constant_holds_the_normalizer_behind_the_layer() -> None:
    """The product of Theorem 12 runs over normalizers from the layer's own on."""
    model = seeded(nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.ReLU(), nn.Linear(6, 3)))
    printed = _rows(model)["0.weight"].printed
    normalizer = normscope.analyze(model, X, stacked=False).normalizers[0].printed
    assert normalizer is not None
    assert printed is not None
    expected = NORM * spectral_norm(model[3].weight.detach()) * normalizer.value
    assert printed.value == pytest.approx(expected, rel=FINE)


def test_attained_is_the_largest_jacobian_in_the_weight() -> None:
    """Dense, at every sample."""
    model = _chain()
    rows = _rows(model)
    for name, parameter in model.named_parameters():
        largest = 0.0
        for x in X:

            def of(weight: torch.Tensor, x: torch.Tensor = x, name: str = name) -> torch.Tensor:
                return torch.func.functional_call(model, {name: weight}, (x[None],)).flatten()

            dense = torch.autograd.functional.jacobian(of, parameter.detach()).reshape(3, -1)
            largest = max(largest, spectral_norm(dense))
        attained = rows[name].attained
        assert attained is not None
        assert attained.kind is Kind.LOWER
        assert attained.value == pytest.approx(largest, rel=1e-6)


def test_a_bias_is_no_plain_chain() -> None:
    """The product of norms is not a bound then, and is not given."""
    assert _rows(seeded(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))))["0.weight"].unnormalized is None


def test_a_weight_before_a_normalizer_is_told_to_have_no_scale() -> None:
    """With the normalizer's name; eps decides whether a bound for all values exists."""
    rows = _rows(seeded(nn.Sequential(nn.Linear(4, 6, bias=False), nn.LayerNorm(6), nn.Linear(6, 3))))
    assert rows["0.weight"].scale_free == "1"
    assert any("scale-invariant" in note and "only because of eps" in note for note in rows["0.weight"].notes)
    assert rows["2.weight"].scale_free is None


def test_a_weight_that_moves_what_it_meets_has_constants_for_small_changes_only() -> None:
    """Used twice in a row, and noted."""
    (row,) = _rows(seeded(Lambda(lambda s, x: s.a(torch.tanh(s.a(x))), a=nn.Linear(4, 4, bias=False)))).values()
    assert (row.name, row.uses, row.printed) == ("a.weight", 2, None)
    assert row.constants
    assert all(key.endswith("_small") for key in row.constants)
    assert all("at these weights" in value.domain for value in row.constants.values())
    assert any("small changes" in note for note in row.notes)


def test_without_data_only_outputs_are_bounded() -> None:
    """Nothing is measured, and nothing is printed that needs a measurement."""
    model = _chain()
    for row in normscope.weight_lipschitz(model, input_shape=(4,)).weights:
        assert row.outputs["global"].kind is Kind.CERTIFIED
        assert (row.constants, row.input_norm, row.attained, row.printed, row.unnormalized) == (
            {},
            None,
            None,
            None,
            None,
        )


@pytest.mark.parametrize(
    ("printed", "best", "attained", "decided"),
    [
        (3.0, 2.0, 1.0, True),
        (2.0, 2.0 * (1 + 1e-12), 1.0, True),
        (1.5, 2.0, 1.0, None),
        (0.5, 2.0, 1.0, False),
        (0.5, 2.0, None, None),
        (3.0, None, 1.0, None),
        (0.5, None, 1.0, False),
        (None, 2.0, 1.0, None),
    ],
)
def test_a_printed_number_is_a_bound_if_it_is_proved_and_none_if_it_is_exceeded(
    printed: float | None, best: float | None, attained: float | None, decided: bool | None
) -> None:
    """Between the two nothing is said."""

    def value(x: float | None, kind: Kind) -> Value | None:
        return None if x is None else Value.of(x, kind)

    found = _decided(value(printed, Kind.PRINTED), value(best, Kind.CERTIFIED), value(attained, Kind.LOWER))
    assert found is decided


def test_small_changes_are_listed_where_they_say_more() -> None:
    """Or where there is nothing else."""
    assert list(_both("global", 1.0, 1.0)) == [("global", 1.0, False)]
    assert list(_both("global", 0.5, 1.0)) == [("global", 1.0, False), ("global_small", 0.5, True)]
    assert list(_both("global", 0.5, None)) == [("global_small", 0.5, True)]
    assert list(_both("global", 0.5, math.inf)) == [("global", math.inf, False), ("global_small", 0.5, True)]
