"""What surrounds the numbers: coverage, statistics and effects, counted and computed by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope
from networks import Lambda, points, seeded
from normscope.analysis.facts import effect
from normscope.core.result import LayerResult, NormalizerResult
from normscope.core.value import Kind, Value

X = points(6, 4)


def _certified(x: float) -> Value:
    return Value.of(x, Kind.CERTIFIED)


class Hidden(nn.Module):
    """A layer, and a weight inside an operation that has no rule."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.w = nn.Parameter(torch.full((4,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        """Use both."""
        return torch.special.zeta(self.fc(x).abs() + 2.0, self.w) + x.sign()


def test_coverage_counts_operations_and_the_parameters_they_hide() -> None:
    """Four of twenty-four parameters are used by what is not understood; what jumps is understood."""
    result = normscope.analyze(Hidden(), X.float(), points=1, ascent=0)
    found = result.coverage
    assert found.parameters_total == 24
    assert found.parameters == pytest.approx(20 / 24)
    assert found.understood == found.ops - 1
    unknown, jumps = sorted(found.opaque, key=lambda o: o.known)
    assert ("zeta" in unknown.op, unknown.known) == (True, False)
    assert ("sign" in jumps.op, jumps.known) == (True, True)
    assert any("zeta" in text and "not understood" in text for text in result.messages)
    assert any("sign" in text and "is not Lipschitz" in text for text in result.messages)


def test_what_is_understood_is_covered() -> None:
    """All of it, buffers not counted as parameters."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 3)))
    found = normscope.analyze(model, X, points=1, ascent=0).coverage
    assert (found.ops, found.understood, found.opaque) == (4, 4, ())
    assert (found.parameters, found.parameters_total) == (1.0, sum(p.numel() for p in model.parameters()))


def test_statistics_are_those_of_the_data() -> None:
    """Variances before each activation, the range and the largest norm of the input."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3), nn.ReLU()))
    found = normscope.analyze(model, X, points=1, ascent=0).statistics
    assert found["samples"] == 6
    (given,) = found["inputs"]
    assert (given["low"], given["high"]) == (float(X.min()), float(X.max()))
    assert given["largest_norm"] == pytest.approx(float(X.norm(dim=1).max()))
    before = [model[0](X), model[:3](X)]  # type: ignore[index, operator]
    assert len(found["before_activations"]) == 2
    for item, y in zip(found["before_activations"], before, strict=True):
        variance = y.detach().var(0, unbiased=False)
        assert item["variance_mean"] == pytest.approx(float(variance.mean()))
        assert item["variance_min"] == pytest.approx(float(variance.min()))
        assert item["variance_max"] == pytest.approx(float(variance.max()))
        assert item["largest_norm"] == pytest.approx(float(y.detach().norm(dim=1).max()))


def test_without_data_nothing_is_said_of_data() -> None:
    """No statistics, and a message."""
    result = normscope.analyze(nn.Linear(3, 2), points=1, ascent=0)
    assert result.statistics == {}
    assert result.input["data"] is False
    assert any(m.startswith("no data was given, so no result is about your data") for m in result.messages)


def test_the_model_and_its_input_are_described() -> None:
    """Enough to know what was looked at, and how."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.ReLU()))
    model[0].weight.requires_grad_(False)  # frozen parameters count too
    result = normscope.analyze(model, X, name="net", seed=5, points=1, ascent=0)
    assert (result.model["name"], result.model["class"], result.model["parameters"]) == ("net", "Sequential", 25)
    assert (result.model["mode"], result.model["norm"], result.model["torch"]) == ("running", "l2", torch.__version__)
    assert result.model["normscope"] == normscope.__version__
    assert result.model["options"]["seed"] == 5
    assert [b["shape"] for b in result.input["blocks"]] == [[1, 4]]
    assert result.input["data"] is True
    assert len(result.input["outputs"]) == 1


@pytest.mark.parametrize(
    ("model", "data", "said"),
    [
        (
            nn.Sequential(nn.Embedding(9, 4), nn.Linear(4, 2)),
            torch.zeros(3, 5, dtype=torch.long),
            "tokens are discrete",
        ),
        (Lambda(lambda s, x: torch.ones_like(x)), X, "no output depends on a floating-point input"),
        (Lambda(lambda s, x: x - x.mean(0, keepdim=True)), X, "the input is a stacked batch of 6"),
    ],
)
def test_what_a_reader_must_know_is_said(model: nn.Module, data: Tensor, said: str) -> None:
    """And not where it does not hold."""
    assert any(said in text for text in normscope.analyze(model, data, points=1, ascent=0).messages)
    assert not any(said in text for text in normscope.analyze(nn.Linear(4, 2).double(), X, points=1).messages)


def _normalizer(printed: float, proved: float, **details: Any) -> NormalizerResult:
    return NormalizerResult(
        "n", "batch_norm", Value.of(printed, Kind.PRINTED), True, _certified(proved), None, None, details
    )


def test_effects_are_products_and_quotients() -> None:
    """Of numbers made by hand."""
    fixed = [
        _normalizer(10.0, 4.0, slides=Value.of(6.0, Kind.PRINTED), std_min=0.3, eps=0.07),
        _normalizer(100.0, 5.0, slides=Value.of(7.0, Kind.PRINTED), std_min=0.6, eps=0.28),
        _normalizer(1000.0, 99.0),
    ]
    layers = [
        LayerResult("a", "matrix", (2, 2), _certified(2.0), Value.of(2.0, Kind.LOWER), _certified(3.0)),
        LayerResult("b", "matrix", (2, 2), _certified(50.0), Value.of(50.0, Kind.LOWER)),
    ]
    ends: dict[str, Value | None] = {"global": _certified(600.0), "without_normalizers": _certified(30.0)}
    found = effect(fixed, layers, ends)
    truths = {
        "printed_product": 10 * 100 * 1000,
        "slides_product": 6 * 7,
        "largest_inverse_std_product": 1 / math.sqrt((0.09 + 0.07) * (0.36 + 0.28)),
        "normalizer_product": 4 * 5,
        "folded_product": 3,
        "change_of_bound": 600 / 30,
    }
    assert set(found) == set(truths)
    for name, truth in truths.items():
        assert 10 ** found[name]["log10"] == pytest.approx(truth), name
    assert 10 ** found["folded_product"]["weights_log10"] == pytest.approx(2.0)
    assert {name for name, item in found.items() if item["kind"] == "printed"} == {"printed_product", "slides_product"}
    ends["variance_floor"] = _certified(60.0)  # the narrower domain counts where there is one
    assert 10 ** effect(fixed, layers, ends)["change_of_bound"]["log10"] == pytest.approx(2.0)


@pytest.mark.parametrize(("whole", "bare"), [(math.inf, 3.0), (3.0, None)])
def test_nothing_is_compared_with_no_bound(whole: float, bare: float | None) -> None:
    """An infinite bound has no quotient, and neither has one that is not there."""
    upper = Value(math.log(whole), Kind.CERTIFIED)
    assert effect([], [], {"global": upper, "without_normalizers": None if bare is None else _certified(bare)}) == {}


def test_effects_of_normalizers_of_zero_and_without_bound() -> None:
    """Products hold what their factors hold: zero makes zero, and no bound stays none."""
    none = Value(math.inf, Kind.PRINTED)
    zero = _normalizer(0.0, 0.0, slides=Value.of(0.0, Kind.PRINTED), std_min=1.0, eps=0.0)
    other = replace(_normalizer(1.0, 2.0, slides=none, std_min=0.5, eps=0.0), printed=none)
    layer = LayerResult("a", "matrix", (2, 2), _certified(2.0), Value.of(2.0, Kind.LOWER), _certified(0.0))
    alone = effect([zero], [layer], {})
    assert {key: item["log10"] for key, item in alone.items()} == {
        "printed_product": -math.inf,
        "slides_product": -math.inf,
        "largest_inverse_std_product": pytest.approx(0.0),
        "normalizer_product": -math.inf,
        "folded_product": -math.inf,
    }
    both = effect([zero, other], [], {"global": _certified(0.0), "without_normalizers": _certified(2.0)})
    assert both["printed_product"]["log10"] == both["slides_product"]["log10"] == math.inf
    assert both["normalizer_product"]["log10"] == -math.inf
    assert "change_of_bound" not in both
