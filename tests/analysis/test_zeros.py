"""Networks in which numbers become zero or have no bound: every table is there, written, read back and shown."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import points, seeded
from normscope import analyze
from normscope.analysis import capacity, end_to_end, facts, layers
from normscope.analysis.compare import compare
from normscope.core.result import Result
from normscope.report.analysis import result_sections
from normscope.report.html import report_html
from normscope.report.table import plain_text
from rotation import todays

IMAGES = points(6, 3, 6, 6).float()
VECTORS = points(6, 4).float()


class Residual(nn.Module):
    """A convolutional residual block with two normalizers."""

    def __init__(self, first: nn.Module, last: nn.Module) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), first, nn.ReLU())
        self.branch = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), last)
        self.head = nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Add the branch."""
        x = self.first(x)
        return self.head((x + self.branch(x)).relu().mean((2, 3)))


class Square(nn.Module):
    """A function without a bound on all inputs."""

    def forward(self, x: Tensor) -> Tensor:
        """Multiply an input by itself."""
        return x * x


def _batch_norm(gamma: float, variance: float = 1.0, eps: float = 1e-5) -> nn.Module:
    norm = nn.BatchNorm2d(4, eps=eps)
    nn.init.constant_(norm.weight, gamma)
    norm.running_var = torch.full((4,), variance)
    return norm


def _zeroed(module: Any) -> nn.Module:
    nn.init.zeros_(module.weight)
    return module  # type: ignore[no-any-return]


def _vector(*modules: nn.Module) -> nn.Module:
    return seeded(nn.Sequential(*modules))


NETWORKS: dict[str, Callable[[], nn.Module]] = {
    "zero branch": lambda: Residual(_batch_norm(1.0), _batch_norm(0.0)),
    "zero everywhere": lambda: Residual(_batch_norm(0.0), _batch_norm(0.0)),
    "smallest scale": lambda: Residual(_batch_norm(1e-45), _batch_norm(1.0)),
    "zero group norm": lambda: Residual(nn.GroupNorm(2, 4), _zeroed(nn.GroupNorm(2, 4))),
    "zero instance norm": lambda: Residual(nn.InstanceNorm2d(4), _zeroed(nn.InstanceNorm2d(4, affine=True))),
    "zero layer norm": lambda: _vector(nn.Linear(4, 5), _zeroed(nn.LayerNorm(5)), nn.Linear(5, 2)),
    "zero rms norm": lambda: _vector(nn.Linear(4, 5), _zeroed(nn.RMSNorm(5)), nn.Linear(5, 2)),
    "no eps": lambda: _vector(nn.Linear(4, 5), nn.LayerNorm(5, eps=0.0), _zeroed(nn.Linear(5, 2))),
    "zero layer": lambda: _vector(_zeroed(nn.Linear(4, 5)), nn.BatchNorm1d(5), nn.ReLU(), nn.Linear(5, 2)),
    "zero before no bound": lambda: _vector(_zeroed(nn.Linear(4, 4)), Square(), nn.LayerNorm(4)),
    "constant": lambda: _vector(nn.Linear(4, 2), nn.Hardtanh(0.0, 1e-30)),
}


@pytest.mark.turns(6)
@pytest.mark.parametrize("mode", ["running", "batch", "frozen-batch"])
@pytest.mark.parametrize("name", todays(NETWORKS, 4))
def test_every_table_is_there(name: str, mode: str) -> None:
    """Nothing fails (in other networks every day), and a result that was read back shows what the first one shows."""
    model = NETWORKS[name]().eval()
    data = IMAGES if isinstance(model, Residual) else VECTORS
    result = analyze(model, data, mode=mode, points=1, ascent=2)
    assert not [text for text in result.messages if re.search("left out|skipped|contradiction", text)]
    again = Result.from_dict(json.loads(result.to_json()))
    assert again == result
    assert plain_text(result_sections(again, everything=True)) == plain_text(result_sections(result, everything=True))
    assert report_html(again) == report_html(result)
    both = compare({"a": result, "b": again})
    assert json.loads(both.to_json())["models"] == ["a", "b"]


def test_a_batch_norm_of_zeros_has_the_constant_zero() -> None:
    """In its row, in the products, and the network is what is left of it."""
    result = analyze(NETWORKS["zero branch"]().eval(), IMAGES, points=1, ascent=0)
    row = next(n for n in result.normalizers if n.name == "branch.1")
    assert row.proved.value == 0.0
    assert result.effect["normalizer_product"]["log10"] == float("-inf")
    assert result.effect["slides_product"]["log10"] == float("-inf")
    whole = result.end_to_end["global"]
    assert whole is not None
    assert 0.0 < whole.value < float("inf")


#: Steps of an analysis: where each is found, what is said when it fails, and the field that is then empty.
STEPS = [
    (facts, "effect", "what normalizers change is left out", "effect"),
    (capacity, "depth", "the table along depth is left out", "depth"),
    (facts, "statistics", "the statistics of the data is left out", "statistics"),
    (facts, "fold", "the tree of modules is left out", "blocks"),
    (end_to_end, "_stacked", "the bound on a stacked batch is left out", ""),
    (end_to_end, "_without", "the bound without normalizers is left out", ""),
    (end_to_end, "_search", "the lower bound is left out", ""),
    (end_to_end, "_on_floor", "the bound on the variance-floor domain is left out", ""),
    (end_to_end, "_bound", "the bound on all inputs is left out", ""),
    (end_to_end, "_printed", "what papers print is left out", ""),
    (layers, "site_constants", "the constant of first.1 is left out", ""),
    (layers, "_layer", "the norm of first.0 is left out", ""),
]


@pytest.mark.turns(3)
@pytest.mark.parts_may_fail
@pytest.mark.parametrize(
    ("module", "step", "said", "empty"), todays(STEPS, 4), ids=lambda x: x if isinstance(x, str) else ""
)
def test_a_step_that_fails_loses_nothing_else(
    module: Any, step: str, said: str, empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The failure is named in the result and in both reports, and no bound comes out of it."""
    model = Residual(_batch_norm(1.0), _batch_norm(0.5)).eval()
    whole = analyze(model, IMAGES, points=1, ascent=0)

    def fail(*_: Any, **__: Any) -> Any:
        raise TypeError("must be real number, not str")

    monkeypatch.setattr(module, step, fail)
    result = analyze(model, IMAGES, points=1, ascent=0)
    assert any(said in text and "must be real number" in text for text in result.messages)
    assert said in plain_text(result_sections(result))
    assert said in report_html(result)
    assert Result.from_dict(json.loads(result.to_json())) == result
    assert len(result.layers) == len(whole.layers)
    assert len(result.normalizers) == len(whole.normalizers)
    assert not empty or not getattr(getattr(result, empty), "names", getattr(result, empty))
    for key, value in result.end_to_end.items():
        before = whole.end_to_end[key]
        assert value is None or before is None or value.log >= before.log, key
