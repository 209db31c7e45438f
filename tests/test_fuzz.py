"""No certificate is ever false: random networks, every tensor of them, on every domain; and what is unknown is refused.

Some of the networks are tried, others every day; ``make test-all`` tries all of them, and ``NORMSCOPE_FUZZ=5000`` in
the environment makes as many.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import normscope
from fuzzing.draw import Function
from fuzzing.random_networks import random_network
from normscope.operators import registry
from normscope.testing.upper_bound import check_upper_bound
from rotation import todays

COUNT = int(os.environ.get("NORMSCOPE_FUZZ", "510"))
CHUNK = 6


@pytest.mark.turns(3)
@pytest.mark.parametrize("start", todays(range(0, COUNT, CHUNK), 4))
def test_nothing_attained_exceeds_a_bound(start: int) -> None:
    """Jacobians, pairs, ascent and every tensor inside stay below what is certified, on all four domains."""
    for seed in range(start, min(start + CHUNK, COUNT)):
        network, inputs = random_network(seed)
        # One in three through torch.export, the others through the recorder, which is quicker.
        checked = check_upper_bound(network, inputs, seed=seed, front_end="export" if seed % 3 == 0 else "dispatch")
        assert checked.violations == [], f"seed {seed}: {checked.violations[:5]}\n{network}"


@pytest.mark.turns(2)
@pytest.mark.parametrize("start", todays(range(0, COUNT, 5 * CHUNK), 2))
def test_the_whole_analysis_has_an_answer(start: int) -> None:
    """``analyze`` ends with a result, its upper bounds above what it attained itself; one network in five."""
    for seed in range(start, min(start + 5 * CHUNK, COUNT), 5):
        network, inputs = random_network(seed)
        data = inputs if len(inputs) > 1 else inputs[0]
        values = normscope.analyze(network, data, points=1, ascent=1, without_normalizers=False).end_to_end
        for upper, lower in (("global", "lower_everywhere"), ("variance_floor", "lower")):
            below, above = values[lower], values[upper]
            assert above is not None
            assert below is None or below.log <= above.log, f"seed {seed}: {lower} above {upper}\n{network}"


@pytest.mark.turns(3)
def test_most_random_networks_have_finite_bounds() -> None:
    """The networks would prove nothing if their bounds were infinite: most are finite on the data's range."""
    finite = 0
    for seed in range(30):
        network, inputs = random_network(seed)
        checked = check_upper_bound(network, inputs, seed=seed, front_end="dispatch", ascent=0)
        finite += checked.upper["floors and range"] < math.inf
    assert finite >= 27


@pytest.fixture
def doubling() -> Iterator[str]:
    """Give a custom operation that doubles its input, and forget its rule afterwards."""
    name = "normscope_fuzz::double"
    if not hasattr(torch.ops.normscope_fuzz, "double"):
        torch.library.custom_op(name, lambda x: x * 2.0, mutates_args=(), schema="(Tensor x) -> Tensor")
        torch.library.register_fake(name, lambda x: torch.empty_like(x))
    op = "normscope_fuzz.double.default"
    yield op
    registry._RULES.pop(op, None)


def _network(middle: Callable[[Tensor], Tensor]) -> nn.Module:
    """Return a network with a function in its middle."""
    torch.manual_seed(0)
    inner = Function("middle", lambda m, x: middle(x))
    return nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), inner, nn.Linear(4, 3)).eval()


def _bound(model: nn.Module) -> normscope.Result:
    """Return the analysis of a model on a little data."""
    x = torch.randn(4, 4, generator=torch.Generator().manual_seed(1))
    return normscope.analyze(model, x, points=1, ascent=0, stacked=False, without_normalizers=False)


def _infinite(result: normscope.Result) -> bool:
    """Return whether both bounds of a result are infinite."""
    return all(result.end_to_end[k].log == math.inf for k in ("global", "variance_floor"))  # type: ignore[union-attr]


def test_an_unknown_operation_is_refused_until_it_has_a_rule(doubling: str) -> None:
    """The bound is infinite, the operation is listed with what to do, and a registered rule makes it exact."""
    result = _bound(_network(torch.ops.normscope_fuzz.double))
    assert _infinite(result)
    (unknown,) = result.coverage.opaque
    assert unknown.op == doubling
    assert not unknown.known
    assert "register_rule" in unknown.reason
    assert result.coverage.understood == result.coverage.ops - 1
    normscope.register_rule(doubling, lambda call: call.linear("generic", lambda x: 2 * x, [call["x"]]))
    ruled = _bound(_network(torch.ops.normscope_fuzz.double))
    plain = _bound(_network(lambda x: x * 2.0))
    assert ruled.coverage.opaque == ()
    assert ruled.end_to_end["global"].log == pytest.approx(plain.end_to_end["global"].log, abs=1e-9)  # type: ignore[union-attr]


class _StraightThrough(torch.autograd.Function):
    """Round forwards, pass the gradient backwards."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Round."""
        return x.round()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Pass the gradient."""
        return grads[0]


class _ThroughNumpy(torch.autograd.Function):
    """Compute outside torch, where nothing can be followed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        """Compute the cube in numpy."""
        return torch.from_numpy(np.power(x.detach().numpy(), 3))

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        """Pass the gradient."""
        return grads[0]


REFUSED: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "argmax": (lambda x: x * x.argmax(-1, keepdim=True), "argmax"),
    "indices of topk": (lambda x: x.gather(1, (-x).topk(4, 1).indices), "topk"),
    "indices of max": (lambda x: torch.roll(x, 1, 1).gather(1, x.max(1, keepdim=True).indices.expand(-1, 4)), "max"),
    "order of sort": (lambda x: x.flip(1).gather(1, x.sort(1).indices), "sort"),
    "rounding": (torch.round, "round"),
    "sign": (torch.sign, "sign"),
    "comparison": (lambda x: torch.where(x > 0, x + 1.0, x - 1.0), "where"),
    "integers": (lambda x: x.int().to(x.dtype), "to"),
    "matrix inverse": (lambda x: torch.linalg.inv(torch.diag_embed(x) + 9.0)[:, 0], "inv"),
    "straight through": (_StraightThrough.apply, "round"),  # type: ignore[dict-item]
    "numpy": (_ThroughNumpy.apply, "normscope"),  # type: ignore[dict-item]
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_discontinuous_or_unknown_is_refused(name: str) -> None:
    """Never a finite number: the bound is infinite and the operation is named."""
    function, op = REFUSED[name]
    result = _bound(_network(function))
    assert _infinite(result)
    assert any(op in o.op for o in result.coverage.opaque), [o.op for o in result.coverage.opaque]


def test_values_of_order_statistics_are_lipschitz() -> None:
    """The k largest values, sorted, are 1-Lipschitz although their places are not."""
    for function in (lambda x: x.topk(4, 1).values, lambda x: x.sort(1).values):
        result = _bound(_network(function))
        assert result.coverage.opaque == ()
        assert result.end_to_end["global"].log < math.inf  # type: ignore[union-attr]
