"""The attempt to refute a bound succeeds where the bound is wrong, wherever that shows, and fails where it is right."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fingerprints import fingerprint
from fuzzing.draw import Draw, Function
from networks import spectral_norm
from normscope.operators import registry, spread_division
from normscope.operators.registry import Call
from normscope.testing.upper_bound import UpperBoundCheck, check_upper_bound

X = Draw(0).tensor(4, 6)
#: Norm of the matrix of running sums, of ones on and below its diagonal, for six entries: 1/(2 sin(pi/(4 n + 2))).
SUMS = 1 / (2 * math.sin(math.pi / 26))
FRONT_ENDS = pytest.mark.parametrize("front_end", ["export", "dispatch"])


def _sums() -> nn.Module:
    return Function("sums", lambda m, x: x.cumsum(-1)).eval()


def _forged(factor: float) -> registry.Rule:
    """Return a rule that takes running sums for a multiple of their input."""

    def rule(call: Call) -> object:
        return call.linear("generic", lambda x: factor * x, [call["self"]])

    return rule


@FRONT_ENDS
def test_a_right_bound_stands(front_end: str) -> None:
    """On every domain, and what is attained of a linear map is its norm."""
    checked = check_upper_bound(_sums(), [X], front_end=front_end)
    assert checked.violations == []
    assert checked.opaque == []
    for name in ("everywhere", "floors", "range", "floors and range"):
        assert checked.upper[name] == pytest.approx(math.log(SUMS), abs=1e-3)
        assert checked.upper[name] >= math.log(SUMS)
        assert checked.attained[name] == pytest.approx(math.log(SUMS), abs=1e-6)


@FRONT_ENDS
@pytest.mark.parametrize("share", [0.1, 0.9, 0.999])
def test_a_wrong_bound_falls(share: float, front_end: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a tenth or by a thousandth: a Jacobian exceeds it on every domain, and the node that is wrong is named."""
    monkeypatch.setitem(registry._RULES, "aten.cumsum.default", _forged(share * SUMS))
    checked = check_upper_bound(_sums(), [X], front_end=front_end)
    assert checked.upper["everywhere"] == pytest.approx(math.log(share * SUMS), abs=1e-3)
    for name in ("everywhere", "floors", "range", "floors and range"):
        assert any("a Jacobian" in text and f"on {name}, certified" in text for text in checked.violations), name
    if share < 0.5:  # pairs of points do not lie in the steepest direction, but near enough for this
        assert any(text.startswith("a pair") for text in checked.violations)
        assert any("(generic)" in text and "changes it by" in text for text in checked.violations)


def test_the_same_rule_is_right_where_it_says_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the number that is refuted, not the rule."""
    monkeypatch.setitem(registry._RULES, "aten.cumsum.default", _forged(1.001 * SUMS))
    assert [text for text in check_upper_bound(_sums(), [X]).violations if "attains" in text] == []


def test_what_is_wrong_far_from_the_data_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A branch that sleeps at the data and wakes at fifty is found on all inputs, and nowhere else."""
    monkeypatch.setitem(registry._RULES, "aten.cumsum.default", _forged(0.0))
    model = Function("far", lambda m, x: torch.cat([x, torch.relu(x - 50.0).cumsum(-1)], -1)).eval()
    checked = check_upper_bound(model, [X])
    assert checked.upper["everywhere"] == pytest.approx(0.0, abs=1e-6)
    attained = [text for text in checked.violations if "attains" in text]
    assert attained
    assert all("on everywhere" in text for text in attained)


def _scaled_division(monkeypatch: pytest.MonkeyPatch, share: float, *, floors_only: bool = False) -> None:
    """Make normalizers less steep than they are, on all domains or on those with a floor."""
    truth = spread_division.division_constant

    def forged(spread: spread_division.Spread, s: Tensor) -> Tensor:
        right = truth(spread, s)
        return torch.where(s > 0, share * right, right) if floors_only else share * right

    monkeypatch.setattr(spread_division, "division_constant", forged)


def _layer_norm() -> nn.Module:
    return nn.LayerNorm(6, eps=1e-12, elementwise_affine=False).double().eval()


def test_normalizers_are_visited_where_they_are_steepest(monkeypatch: pytest.MonkeyPatch) -> None:
    """Near constant inputs, a millionth of the data's size: the bound is attained there, and half of it refuted."""
    right = check_upper_bound(_layer_norm(), [X])
    assert right.violations == []
    assert right.attained["everywhere"] == pytest.approx(math.log(1e6), abs=1e-3)
    _scaled_division(monkeypatch, 0.5)
    assert any("a Jacobian attains" in text for text in check_upper_bound(_layer_norm(), [X]).violations)


def test_a_bound_that_is_wrong_on_the_floors_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is refuted there by the data itself, and left alone on all inputs."""
    _scaled_division(monkeypatch, 0.9, floors_only=True)
    violations = [text for text in check_upper_bound(_layer_norm(), [X]).violations if "attains" in text]
    assert any("at the data" in text and "on floors, certified" in text for text in violations)
    assert not any("on everywhere" in text for text in violations)


def test_networks_of_tokens_start_at_their_embedding() -> None:
    """The constant is that of what follows it, token by token."""
    body = nn.Linear(4, 3).double()
    table = nn.Embedding(7, 4).double()
    with torch.no_grad():
        body.weight.copy_(Draw(1).tensor(3, 4))
        table.weight.copy_(Draw(2).tensor(7, 4))
    model = Function("tokens", lambda m, t: m.body(m.table(t)), table=table, body=body).eval()
    checked = check_upper_bound(model, [Draw(3).indices(7, 5, 2)])
    truth = math.log(spectral_norm(body.weight.detach()))
    assert checked.violations == []
    assert truth <= checked.upper["everywhere"] <= truth + 1e-3
    assert checked.attained["everywhere"] == pytest.approx(truth, abs=1e-6)


def test_what_is_not_understood_is_listed_and_not_refuted() -> None:
    """An infinite bound cannot fall; a constant network has nothing to hold it against."""
    checked = check_upper_bound(Function("jump", lambda m, x: x.sign() * x.exp()).eval(), [X])
    assert checked.upper["everywhere"] == math.inf
    assert any("sign" in op for op in checked.opaque)
    assert checked.violations == []
    flat = check_upper_bound(Function("constant", lambda m, x: torch.zeros_like(x)).eval(), [X])
    assert (flat.violations, flat.attained) == ([], {})


def test_the_model_and_its_inputs_stay_as_they_were() -> None:
    """And the global generators."""
    model, x = _layer_norm(), X.clone()
    before = fingerprint(model, x)
    check_upper_bound(model, [x], ascent=2)
    assert fingerprint(model, x) == before


def test_the_seed_decides_everything() -> None:
    """Twice the same is found, to the last bit."""
    first, again = (check_upper_bound(_layer_norm(), [X], seed=3) for _ in range(2))
    assert first == again


def test_comparisons_know_what_rounding_may_do() -> None:
    """A value beyond a bound counts, up to the error of its evaluation; derivatives lost in noise and NaN do not."""
    checked = UpperBoundCheck({"d": math.log(2.0)}, {"d": math.log(1.5)}, noise=1e-3)
    for nothing in (math.nan, math.inf, 0.0, -1.0):
        checked.compare("d", nothing, "a Jacobian")
    checked.compare("d", 1e-4, "a Jacobian")
    assert checked.attained == {}
    checked.compare("d", 1e-4, "a pair")
    assert checked.attained["d"] == pytest.approx(math.log(1e-4))
    checked.compare("d", 1.5 * (1 + 1e-12), "a pair")
    assert checked.violations == []
    checked.compare("d", 1.6, "a pair")
    assert [("probable" in v, "certified" in v) for v in checked.violations] == [(True, False)]
    checked.compare("d", 2.1, "ascent")
    assert len(checked.violations) == 3
    assert checked.attained["d"] == pytest.approx(math.log(2.1))
    zero = UpperBoundCheck({"d": -math.inf}, {"d": -math.inf})
    zero.compare("d", 1e-9, "a Jacobian")
    assert zero.violations == []
    zero.compare("d", 1e-9, "a pair")
    assert len(zero.violations) == 2
