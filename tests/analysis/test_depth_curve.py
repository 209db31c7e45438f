"""The bounds along depth: above what is attained at every place, equal where they must be, ending at the totals."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fingerprints import fingerprint
from normscope.analysis import analyze
from normscope.core.result import Result
from normscope.zoo.catalogue import build, example_input
from rotation import todays


def _data(name: str, count: int = 6, **arguments: Any) -> Tensor:
    example = example_input(name, count, **arguments)
    if not example.is_floating_point():
        return example
    return torch.randn(example.shape, generator=torch.Generator().manual_seed(1))


def _zoo(name: str, **arguments: Any) -> Result:
    return analyze(build(name, **arguments).eval(), _data(name, **arguments))


NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "BatchNorm": ("relu10", {"norm": "bn", "width": 12, "depth": 5, "in_features": 8}),
    "LayerNorm": ("relu10", {"norm": "ln", "width": 12, "depth": 5, "in_features": 8}),
    "GroupNorm": ("cnn", {"norm": "gn", "width": 4}),
    "tokens": ("gpt", {"width": 8, "layers": 2, "heads": 2, "vocabulary": 11}),
    "gated RMSNorm": (
        "llama_like",
        {"width": 8, "layers": 1, "hidden": 12, "heads": 2, "key_heads": 1, "vocabulary": 11},
    ),
    "shortcuts": ("densenet", {"growth": 2, "blocks": (2, 2), "stem": 4, "image_size": 8}),
}


@pytest.fixture(scope="module", params=todays(NETWORKS, 3))
def result(request: pytest.FixtureRequest) -> Result:
    """Return the result of one network."""
    name, arguments = NETWORKS[request.param]
    return _zoo(name, **arguments)


@pytest.mark.turns(3)
def test_curves_end_at_the_end_to_end_constants(result: Result) -> None:
    """First the input with constant one, last the output with the number of the table, all places between."""
    depth = result.depth
    assert depth.names[0] == "input"
    assert depth.names[-1] == "output"
    wanted = {x.name for x in result.layers} | {n.name for n in result.normalizers}
    assert set(depth.names[1:-1]) == wanted
    assert len(depth.names) == len(depth.kinds) == len(wanted) + 2
    for name, curve in depth.curves.items():
        constant = result.end_to_end[name]
        assert constant is not None
        assert curve.log10[0] == 0.0
        assert len(curve.log10) == len(depth.names)
        assert (curve.kind, curve.domain) == (constant.kind, constant.domain)
        assert curve.log10[-1] == pytest.approx(constant.log10, abs=2e-9)


def test_what_is_attained_lies_below_what_is_proved(result: Result) -> None:
    """At every place: attained <= variance floor <= all inputs; and something is attained somewhere."""
    curves = result.depth.curves
    lower = curves["lower"].log10
    for place, value in enumerate(lower):
        floor, everywhere = (curves[name].log10[place] for name in ("variance_floor", "global"))
        assert floor is not None
        assert everywhere is not None
        assert floor <= everywhere + 2e-9
        assert value is None or value <= floor
    assert sum(value is not None for value in lower) > len(lower) / 2


class Plain(nn.Module):
    """Two layers around a LayerNorm, whose Jacobians are easy to write down."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(3)
        self.a, self.norm, self.b = nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3)
        for p in self.parameters():
            p.data = torch.randn(p.shape, generator=generator)

    def forward(self, x: Tensor) -> Tensor:
        """Run the model."""
        return self.b(self.norm(self.a(x)).tanh())


def test_against_dense_jacobians() -> None:
    """The lower curve is at most, and here nearly, the largest singular value of the prefix at some data point."""
    model, data = Plain(), torch.randn(4, 5, generator=torch.Generator().manual_seed(0))
    depth = analyze(model, data).depth
    assert depth.names == ("input", "a", "norm", "b", "output")
    double = Plain().double()
    double.load_state_dict(model.state_dict())
    prefixes = [double.a, lambda x: double.norm(double.a(x)), double]
    for place, prefix in enumerate(prefixes, start=1):
        norms = [
            float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(prefix, x), ord=2)) for x in data.double()
        ]
        lower = depth.value("lower", place)
        assert lower is not None
        assert 0.99 * min(norms) <= lower.value <= max(norms)
    upper = depth.value("global", 1)
    exact = float(torch.linalg.matrix_norm(double.a.weight.detach(), ord=2))
    assert upper is not None
    assert exact <= upper.value <= exact * (1 + 1e-6)


def test_without_normalizers_a_normalizer_changes_nothing() -> None:
    """On the curve without normalizers the place after one has the number of the place before it."""
    depth = _zoo("relu10", norm="ln", width=8, depth=4, in_features=6).depth
    curve = depth.curves["without_normalizers"].log10
    places = [i for i, kind in enumerate(depth.kinds) if kind == "normalizer"]
    assert places
    assert all(curve[i] == curve[i - 1] for i in places)


def test_the_printed_curve_is_the_flat_product() -> None:
    """It grows by the printed factor of each row."""
    result = _zoo("relu10", norm="bn", width=8, depth=4, in_features=6)
    factors = {x.name: x.upper.log10 for x in result.layers}
    factors |= {n.name: n.printed.log10 for n in result.normalizers if n.printed is not None}
    total, curve = 0.0, result.depth.curves["printed"].log10
    for place, name in enumerate(result.depth.names[1:-1], start=1):
        total += factors[name]
        assert curve[place] == pytest.approx(total, abs=1e-8)


def test_a_bound_that_is_infinite_is_so_from_there_on() -> None:
    """After an operation that no rule understands there is no bound, and it is said."""

    class Unknown(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return self.b(torch.special.bessel_j0(self.a(x)))

    depth = analyze(Unknown(), torch.ones(2, 4)).depth
    curve = depth.curves["global"].log10
    assert curve[1] is not None
    assert math.isfinite(curve[1])
    assert curve[2:] == (math.inf, math.inf)


def test_of_many_places_in_one_linear_part_some_are_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each measured one is the norm of the product up to there; the others are left out, and the ends stay."""
    model = nn.Sequential(*(nn.Linear(3, 3, bias=False) for _ in range(60))).double()
    monkeypatch.setattr("normscope.analysis.depth_curve.MEASURED", 300)
    curve = analyze(model, torch.randn(4, 3, dtype=torch.float64), time=0).depth.curves["global"]
    product, measured = torch.eye(3, dtype=torch.float64), 0
    for layer, log in zip(model, curve.log10[1:-1], strict=True):
        product = layer.weight.detach() @ product
        if log is not None:
            assert log == pytest.approx(math.log10(float(torch.linalg.matrix_norm(product, 2))), abs=1e-6)
            measured += 1
    assert 34 < measured < 50
    assert curve.log10[-1] is not None


def test_without_data_and_without_dependence() -> None:
    """No floor curve without data; no curves at all where nothing depends on the input."""

    class Constant(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(2)

    depth = analyze(nn.Sequential(nn.Linear(3, 2), nn.LayerNorm(2))).depth
    assert "variance_floor" not in depth.curves
    assert analyze(Constant(), torch.ones(2, 2)).depth.names == ()


def test_nothing_of_the_model_is_touched() -> None:
    """Weights, buffers, modes, gradients and the random state are as before."""
    model = build("relu10", norm="bn", width=6, depth=3, in_features=4).train()
    before = fingerprint(model)
    analyze(model, _data("relu10", norm="bn", width=6, depth=3, in_features=4))
    assert fingerprint(model) == before
