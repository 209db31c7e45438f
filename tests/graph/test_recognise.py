"""Hand-written normalizers are found, whatever their spelling, and nothing else is taken for one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import Lambda, captured_of, jacobian_norm, points, program_of, upper_of
from normscope.graph.recognise import Match, Recogniser, name_of

Function = Callable[[Tensor], Tensor]


def _centred(x: Tensor, axis: int = -1) -> Tensor:
    return x - x.mean(axis, keepdim=True)


def _response(x: Tensor) -> Tensor:
    size = x.norm(p=2, dim=(1, 2), keepdim=True)
    return x * (size / (size.mean(-1, keepdim=True) + 1e-6))


#: Function, shape of one sample, kind, eps, factor of the mean square, and where eps stands.
WRITTEN: dict[str, tuple[Function, tuple[int, ...], str, float, float, str]] = {
    "rsqrt of mean square": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6), (2, 6), "rms_norm", 1e-6, 1.0, "inside"),
    "cast to float and back": (
        lambda x: (x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype), (2, 6),
        "rms_norm", 1e-6, 1.0, "inside"),
    "square root, axis put back": (
        lambda x: x / x.square().mean(-1).add(1e-6).sqrt().unsqueeze(-1), (2, 6), "rms_norm", 1e-6, 1.0, "inside"),
    "power of minus a half": (
        lambda x: x * (torch.mean(x * x, -1, keepdim=True) + 1e-3) ** -0.5, (2, 6), "rms_norm", 1e-3, 1.0, "inside"),
    "scaled stabilizer": (
        lambda x: x * torch.rsqrt(torch.add(x.pow(2).mean(-1, keepdim=True), 1e-5, alpha=2)), (2, 6), "rms_norm", 2e-5,
        1.0, "inside"),
    "the mean square of a gain": (
        lambda x: 1.0 * x / (x.square().mean(-1, keepdim=True) + 1e-3).sqrt(), (2, 6), "rms_norm", 1e-3, 1.0, "inside"),
    "a scaled norm": (
        lambda x: x / (x.norm(dim=-1, keepdim=True) * 6**-0.5).clamp(min=1e-2), (2, 6), "l2_norm", 1e-2, 1.0, "max"),
    "reciprocal of a root": (
        lambda x: x * (1.0 / torch.sqrt(x.square().mean(-1, keepdim=True) + 1e-3)), (2, 6), "rms_norm", 1e-3, 1.0,
        "inside"),
    "mean square kept above": (
        lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp(min=1e-4)), (2, 6), "rms_norm", 1e-2, 1.0,
        "max"),
    "biased variance": (
        lambda x: _centred(x) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5), (2, 6), "layer_norm", 1e-5,
        1.0, "inside"),
    "unbiased variance": (
        lambda x: _centred(x) / torch.sqrt(x.var(-1, keepdim=True) + 1e-5), (2, 6), "layer_norm", 1e-5, 1.2, "inside"),
    "standard deviation plus eps": (
        lambda x: _centred(x) / (x.std(-1, keepdim=True) + 1e-3), (2, 6), "layer_norm", 1e-3, 1.2, "outside"),
    "centred written twice": (
        lambda x: _centred(x, 1) / torch.sqrt(_centred(x, 1).pow(2).mean(1, keepdim=True) + 1e-6), (6, 3, 3),
        "layer_norm", 1e-6, 1.0, "inside"),
    "variance times n": (
        lambda x: _centred(x) * torch.rsqrt(x.var(-1, keepdim=True, unbiased=False) * 6 + 1e-5), (2, 6), "layer_norm",
        1e-5, 6.0, "inside"),
    "over space": (
        lambda x: (x - x.mean((2, 3), keepdim=True)) * torch.rsqrt(x.var((2, 3), keepdim=True, unbiased=False) + 1e-5),
        (4, 3, 3), "instance_norm", 1e-5, 1.0, "inside"),
    "l2": (lambda x: F.normalize(x, dim=-1, eps=1e-3), (2, 6), "l2_norm", 1e-3, 6.0, "max"),
    "l2 plus eps": (lambda x: x / (x.norm(dim=-1, keepdim=True) + 1e-3), (2, 6), "l2_norm", 1e-3, 6.0, "outside"),
    "root of sum of squares": (
        lambda x: x / (x.square().sum(-1, keepdim=True) + 1e-5).sqrt(), (2, 6), "l2_norm", 1e-5, 6.0, "inside"),
}  # fmt: skip

OTHERS: dict[str, tuple[Function, tuple[int, ...]]] = {
    "mean over another axis": (
        lambda x: _centred(x, 1) / (x.var(-1, keepdim=True, unbiased=False) + 1e-5).sqrt(), (4, 6)),
    "root of a norm": (lambda x: x * torch.rsqrt(x.norm(dim=-1, keepdim=True) + 1e-5), (2, 6)),
    "divided by the variance": (lambda x: _centred(x) / (x.var(-1, keepdim=True, unbiased=False) + 1e-2), (2, 6)),
    "cut off above": (lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp(1e-5, 10.0)), (2, 6)),
    "spread of something else": (lambda x: x * torch.rsqrt(x.flip(-1).pow(2).mean(1, keepdim=True) + 1e-5), (2, 6)),
    "axes crossed by broadcasting": (lambda x: x / (x.norm(dim=2)[:, None, :] + 1e-3), (4, 4)),
    "the 1-norm": (lambda x: x / (x.norm(p=1, dim=-1, keepdim=True) + 1e-3), (2, 6)),
    "cube": (lambda x: x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True).abs() + 1e-5), (2, 6)),
}  # fmt: skip


def _model(function: Function) -> nn.Module:
    return Lambda(lambda s, x: function(x), unused=nn.Parameter(torch.zeros(1, dtype=torch.float64)))


def _worst_jacobian(model: nn.Module, shape: tuple[int, ...]) -> float:
    """Return the largest Jacobian norm at random points of many sizes."""
    return max(
        jacobian_norm(model, points(1, *shape, seed=seed) * scale)
        for seed in range(2)
        for scale in (1e-9, 1e-4, 3e-3, 1e-2, 0.1, 1.0, 30.0)
    )


@pytest.mark.parametrize("data", ["normal", "zero"])
@pytest.mark.parametrize("name", WRITTEN)
def test_every_spelling_is_found(name: str, data: str) -> None:
    """One normalizer, with its kind, stabilizer and factor, on ordinary data and on data where everything is zero."""
    function, shape, kind, eps, factor, where = WRITTEN[name]
    program = program_of(_model(function), points(2, *shape) * (data == "normal"))
    (site,) = program.sites
    assert site.spread is not None
    assert site.written_out
    assert (site.kind, site.spread.where) == (kind, where)
    assert (site.spread.eps, site.spread.factor) == pytest.approx((eps, factor), rel=1e-9)
    assert not program.opaque


@pytest.mark.parametrize("name", WRITTEN)
def test_the_constant_of_a_found_normalizer_holds_and_is_attained(name: str) -> None:
    """No Jacobian exceeds it, and near the worst point one comes within a thousandth of it."""
    function, shape, *_ = WRITTEN[name]
    model = _model(function)
    upper = upper_of(program_of(model, points(2, *shape)))
    worst = _worst_jacobian(model, shape)
    assert worst <= upper * (1 + 1e-9)
    assert worst >= upper * 0.999


@pytest.mark.parametrize("data", ["normal", "zero"])
@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_is_taken_for_a_normalizer(name: str, data: str) -> None:
    """What only looks like one has no normalizer in it, even where all values are zero, and its bound still holds."""
    function, shape = OTHERS[name]
    model = _model(function)
    program = program_of(model, points(2, *shape) * (data == "normal"))
    assert program.sites == []
    assert _worst_jacobian(model, shape) <= upper_of(program)


def test_global_response_normalization_is_found() -> None:
    """ConvNeXt v2's, with the axis of channels."""
    program = program_of(_model(_response), points(2, 3, 3, 4))
    (site,) = program.sites
    assert (site.kind, site.eps) == ("global_response_norm", 1e-6)
    assert _worst_jacobian(_model(_response), (3, 3, 4)) <= upper_of(program)


def test_scale_and_shift_after_a_hand_written_normalizer_are_reported() -> None:
    """They belong to the site, and the constant is that of the torch layer with the same parameters."""
    gamma, beta = torch.tensor([3.0, 2.0, 1.0, 0.5]).double(), torch.ones(4).double()
    model = Lambda(
        lambda s, x: s.g * (_centred(x) / torch.sqrt(x.var(-1, keepdim=True, unbiased=False) + 1e-5)) + s.b,
        g=nn.Parameter(gamma),
        b=nn.Parameter(beta),
    )
    program = program_of(model, points(2, 4))
    (site,) = program.sites
    assert site.gamma is not None
    assert site.beta is not None
    assert (site.gamma.tolist(), site.beta.tolist()) == (gamma.tolist(), beta.tolist())
    assert upper_of(program) == pytest.approx(856.2392, abs=1e-4)


def test_a_match_says_what_it_found() -> None:
    """The matcher itself, without the walk: source, axes and eps."""
    graph = captured_of(_model(WRITTEN["rsqrt of mean square"][0]), points(2, 2, 6)).graph
    recogniser = Recogniser(graph, lambda name: None)
    found = [m for m in (recogniser.match(node) for node in graph) if m is not None]
    (source,) = [node for node in graph if node.op == "input"]
    assert found == [Match(source.name, (2,), 1e-6)]


def test_equal_subexpressions_are_one() -> None:
    """Two nodes that compute the same from the same are the same; other axes or other inputs are not."""

    def function(x: Tensor) -> Tensor:
        return torch.cat([_centred(x), _centred(x), _centred(x, 1), _centred(x.flip(1))], -1)

    graph = captured_of(_model(function), points(2, 3, 3)).graph
    recogniser = Recogniser(graph, lambda name: None)
    a, b, c, d = (node for node in graph if name_of(node) == "sub")
    assert recogniser.same(a, b)
    assert not recogniser.same(a, c)
    assert not recogniser.same(a, d)
    assert not recogniser.same(None, None)
