"""Headline numbers do not notice what the network does not notice: rescaled weights before a normalizer."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from networks import points, seeded
from normscope import analyze
from normscope.core.result import Result
from rotation import todays

DATA = points(6, 2, 6, 6)
SCALE_FREE = ("global", "global_composition", "variance_floor", "lower", "lower_everywhere", "jacobian")
SEARCHED = ("global", "variance_floor", "lower", "lower_everywhere")

NORMALIZERS: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: nn.BatchNorm2d(4),
    "group norm": lambda: nn.GroupNorm(2, 4),
    "instance norm": lambda: nn.InstanceNorm2d(4, affine=True),
    "layer norm": lambda: nn.LayerNorm([4, 4, 4]),
    "rms norm": lambda: nn.RMSNorm([4, 4, 4], eps=1e-3),
}


def _network(normalizer: Callable[[], nn.Module]) -> nn.Sequential:
    """Return convolution, normalizer, ReLU, convolution, normalizer, pool, linear, with a stabilizer that matters."""
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), normalizer(), nn.ReLU(), nn.Conv2d(4, 4, 3, padding=1), normalizer(), nn.ReLU(),
        nn.AvgPool2d(2), nn.Flatten(), nn.Linear(16, 3),
    )  # fmt: skip
    for module in model:
        if hasattr(module, "eps"):
            module.eps = 1e-2
    return seeded(model)  # type: ignore[return-value]


def _rescaled(model: nn.Sequential, factors: dict[int, float]) -> nn.Sequential:
    """Return the same function with the convolutions at some places scaled, and what follows them adjusted."""
    other = copy.deepcopy(model)
    for place, c in factors.items():
        layer, norm = other[place], other[place + 1]
        with torch.no_grad():
            for parameter in layer.parameters():
                parameter.mul_(c)
            norm.eps *= c**2
            if isinstance(norm, nn.BatchNorm2d):
                norm.running_mean.mul_(c)
                norm.running_var.mul_(c**2)
    return other


def _logs(result: Result) -> dict[str, float]:
    """Return every number that must not notice."""
    found = {k: v.log for k in SCALE_FREE if (v := result.end_to_end.get(k)) is not None}
    found |= {f"folded {x.name}": x.folded.log for x in result.layers if x.folded is not None}
    for layer, site in zip(result.layers, result.normalizers, strict=False):
        found[f"{site.name} with its weight"] = site.proved.log + layer.upper.log
        if site.on_floor is not None:
            found[f"{site.name} with its weight, on its floor"] = site.on_floor.log + layer.upper.log
    return found


@pytest.mark.turns(6)
@pytest.mark.parametrize("factors", [{0: 8.0}, {0: 0.5, 3: 4.0}, {0: 3.0, 3: 0.01}])
@pytest.mark.parametrize("name", todays(NORMALIZERS, 2))
def test_rescaling_a_weight_before_a_normalizer_changes_nothing(name: str, factors: dict[int, float]) -> None:
    """Outputs, folded norms and bounds are equal to a millionth, what is found by a search to a thousandth."""
    model = _network(NORMALIZERS[name])
    other = _rescaled(model, factors)
    assert torch.allclose(model(DATA), other(DATA), rtol=1e-10, atol=1e-12)
    before, after = _logs(analyze(model, DATA)), _logs(analyze(other, DATA))
    assert before.keys() == after.keys()
    assert {"global", "variance_floor", "lower", "jacobian"} <= before.keys()
    for key, log in before.items():
        assert after[key] == pytest.approx(log, abs=1e-3 if key in SEARCHED else 1e-6), key


@pytest.mark.parametrize("name", todays(["batch norm", "layer norm", "group norm"], 1))
def test_the_printed_product_moves_and_says_so(name: str) -> None:
    """Every rescaled layer moves the printed product of normalizers by its factor."""
    model = _network(NORMALIZERS[name])
    factors = {0: 8.0, 3: 0.25}
    before, after = (analyze(m, DATA) for m in (model, _rescaled(model, factors)))
    moved = after.effect["printed_product"]["log10"] - before.effect["printed_product"]["log10"]
    assert moved == pytest.approx(-math.log10(8.0 * 0.25), abs=1e-9)
    assert before.effect["printed_product"]["kind"] == "printed"
    assert "parametrization" in before.effect["printed_product"]["note"]


def test_the_folded_product_stays() -> None:
    """What the normalizers change in a form that does not notice: the product of ||diag(gamma/sigma) W||."""
    model = _network(NORMALIZERS["batch norm"])
    before, after = (analyze(m, DATA) for m in (model, _rescaled(model, {0: 8.0, 3: 0.25})))
    assert after.effect["folded_product"]["log10"] == pytest.approx(before.effect["folded_product"]["log10"], abs=1e-9)
    assert "unchanged" in before.effect["folded_product"]["note"]


@pytest.mark.turns(2)
def test_without_normalizers_the_scale_counts() -> None:
    """The bare network is another function after rescaling: its bound moves by the factor."""
    model = _network(NORMALIZERS["layer norm"])
    before, after = (analyze(m, DATA).end_to_end["without_normalizers"] for m in (model, _rescaled(model, {0: 8.0})))
    assert before is not None
    assert after is not None
    assert after.log - before.log == pytest.approx(math.log(8.0), abs=1e-6)
