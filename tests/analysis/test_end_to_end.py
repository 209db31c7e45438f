"""End to end: every constant against dense matrices, closed forms and Jacobians in float64."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import nn

import normscope
from networks import Lambda, jacobian, jacobian_norm, points, seeded, spectral_norm
from normscope.analysis.end_to_end import _restricted, rounded_up
from normscope.core.result import Result
from normscope.core.value import ALL_INPUTS, Kind, Value

X = points(6, 4)
#: Relative width that norms of small networks are found to.
FINE = 2e-4


def _normalized() -> nn.Sequential:
    """Return two layers with BatchNorm between them."""
    model = nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3))
    return seeded(model)  # type: ignore[return-value]


def _value(result: Result, key: str) -> Value:
    found = result.end_to_end[key]
    assert found is not None, key
    return found


def test_printed_constants_are_the_paper_s_products() -> None:
    """Norms by singular values, ``||1/sigma||_2`` by its definition."""
    model = _normalized()
    result = normscope.analyze(model, X, points=1, ascent=0)
    weights = math.prod(spectral_norm(model[i].weight.detach()) for i in (0, 3))
    norm = model[1]
    inverse = float(torch.linalg.vector_norm(1 / torch.sqrt(norm.running_var + norm.eps)))
    for key, truth in (
        ("printed", weights * inverse),
        ("corollary_10", weights * inverse),
        ("corollary_10_power", weights * inverse),
        ("printed_weights", weights),
    ):
        assert _value(result, key).value == pytest.approx(truth, rel=FINE), key
        assert _value(result, key).kind is Kind.PRINTED
    assert result.end_to_end["corollary_11"] is None


def test_corollary_10_takes_the_largest_factor_to_the_power_of_their_number() -> None:
    """Two BatchNorms, one a hundred times as steep."""
    model = seeded(nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 4), nn.BatchNorm1d(4)))
    with torch.no_grad():
        model[1].running_var.mul_(1e-4)  # type: ignore[index, union-attr, operator]
    result = normscope.analyze(model, X, points=1, ascent=0)
    factors = [n.printed for n in result.normalizers if n.printed is not None]
    one, two = (_value(result, key).log for key in ("corollary_10", "corollary_10_power"))
    weights = _value(result, "printed_weights").log
    assert one - weights == pytest.approx(sum(v.log for v in factors))
    assert two - weights == pytest.approx(2 * max(v.log for v in factors))
    assert two > one


def test_a_linear_network_has_the_norm_of_its_matrix() -> None:
    """BatchNorm with fixed statistics is part of it: what is proved is attained."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    result = normscope.analyze(model, X, points=1, ascent=0)
    truth = jacobian_norm(model, X[:1])
    assert truth <= _value(result, "global").value <= truth * (1 + FINE)
    for key in ("lower", "lower_everywhere", "jacobian"):
        assert truth * (1 - 1e-6) <= _value(result, key).value <= truth * (1 + 1e-12), key


def test_without_normalizers_it_is_another_network() -> None:
    """The same layers with the normalizer taken out, analyzed by themselves."""
    model = _normalized()
    bare = nn.Sequential(model[0], model[2], model[3])
    found = _value(normscope.analyze(model, X, points=1, ascent=0, time=0.2), "without_normalizers")
    truth = _value(normscope.analyze(bare, X, points=1, ascent=0, time=0.2), "global")
    assert found.log == pytest.approx(truth.log, abs=1e-9)
    assert normscope.analyze(bare, X, points=1, ascent=0).end_to_end["without_normalizers"] is None
    unasked = normscope.analyze(model, X, points=1, ascent=0, without_normalizers=False)
    assert unasked.end_to_end["without_normalizers"] is None


def test_the_floor_is_the_least_spread_of_the_data() -> None:
    """LayerNorm alone: ``1/sqrt(eps)`` on all inputs, ``1/sqrt(s^2 + eps)`` where spreads stay above the least seen."""
    eps = 1e-4
    model = nn.LayerNorm(4, eps=eps, elementwise_affine=False).double()
    result = normscope.analyze(model, X, points=6, ascent=0)
    least = float(X.var(1, unbiased=False).min())
    assert _value(result, "global").value == pytest.approx(1 / math.sqrt(eps), rel=FINE)
    floor = _value(result, "variance_floor")
    assert floor.value == pytest.approx(1 / math.sqrt(least + eps), rel=FINE)
    assert "stay above those seen in the data" in floor.domain
    steepest = max(jacobian_norm(model, x[None]) for x in X)
    assert _value(result, "lower").value >= steepest * (1 - 1e-6)
    assert _value(result, "lower").log <= floor.log
    assert _value(result, "lower_everywhere").log <= _value(result, "global").log


def test_a_stacked_batch_is_bounded_with_its_statistics() -> None:
    """The Jacobian of the whole batch in training mode, dense, is attained and below what is proved."""
    model = _normalized()
    result = normscope.analyze(model, X, points=1, ascent=0)
    training = copy.deepcopy(model).train()
    whole = jacobian(lambda x: training(x), X)  # type: ignore[arg-type]
    truth = spectral_norm(whole.reshape(-1, X.numel()))
    upper, lower = _value(result, "stacked_batch"), _value(result, "stacked_batch_lower")
    assert (upper.mode, lower.mode) == ("batch", "batch")
    assert lower.value == pytest.approx(truth, rel=1e-6)
    assert truth <= upper.value
    assert upper.domain.startswith("stacked batches of 6")


@pytest.mark.parametrize("settings", [{"stacked": False}, {"mode": "batch"}])
def test_a_stacked_batch_is_left_out_where_it_is_not_asked_for_or_the_input_itself(settings: dict[str, object]) -> None:
    """In batch mode every constant is of the stacked batch already, and says so."""
    result = normscope.analyze(_normalized(), X, points=1, ascent=0, **settings)
    assert result.end_to_end["stacked_batch"] is None
    wide = _value(result, "global").domain
    assert wide == (ALL_INPUTS if "stacked" in settings else "inputs in stacked batches of 6")


def test_gates_are_bounded_on_the_range_of_the_data_only() -> None:
    """On all inputs there is no bound, and the message names the operation; the data's range gives one."""
    model = seeded(Lambda(lambda s, x: s.a(x) * s.b(x), a=nn.Linear(4, 3), b=nn.Linear(4, 3)))
    result = normscope.analyze(model, X, points=2, ascent=0)
    assert _value(result, "global").log == math.inf
    assert any("has no finite constant on all inputs" in text and "mul" in text for text in result.messages)
    floor = _value(result, "variance_floor")
    assert floor.domain == "inputs within the data's range and norms, also at the factors of products"
    assert max(jacobian_norm(model, x[None]) for x in X) <= floor.value < math.inf


def test_networks_that_are_bounded_have_no_such_message() -> None:
    """Only what is infinite is explained."""
    assert not any("no finite constant" in text for text in normscope.analyze(_normalized(), X).messages)


def test_conditions_on_a_domain_add_up() -> None:
    """All inputs become inputs of a kind; kinds are joined."""
    first = _restricted(ALL_INPUTS, "of shape 3")
    assert first == "inputs of shape 3"
    assert _restricted(first, "within a ball") == "inputs of shape 3 and within a ball"


@pytest.mark.parametrize("log", [0.0, 1.0, -3.0, 1e6, -1e6])
def test_logarithms_are_rounded_up(log: float) -> None:
    """By more than sums of a thousand of them lose, and by little; infinities stay."""
    room = rounded_up(log) - log
    assert 1000 * math.ulp(log) < room <= 2e-12 * max(1.0, abs(log))
    assert rounded_up(math.inf) == math.inf
    assert rounded_up(-math.inf) == -math.inf
