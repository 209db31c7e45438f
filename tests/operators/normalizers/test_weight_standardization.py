"""Weight standardization: what it makes of a weight."""

from __future__ import annotations

import math
from collections.abc import Callable

import mpmath
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from networks import jacobian_norm as network_jacobian_norm
from networks import points, program_of, seeded, upper_of
from normscope.analysis import analyze
from normscope.core.errors import InputError
from normscope.operators.normalizer import acts_on_weights, site_constants
from normscope.operators.normalizers.weight_standardization import (
    standardization_bounds,
    standardization_parameter_constant,
    standardized_weight,
)
from operators.normalizers.published import NormalizedArray, ScaledStdConv, StdConv, WSConv
from operators.normalizers.truth import digits, exact_norm, jacobian_norm, kinds, scales, seeds, vectors


def test_effective_weight_is_the_batch_norm_of_the_filters() -> None:
    """Libraries compute it as a batch normalization with one filter per channel."""
    weight, gain = vectors(4 * 3 * 2 * 2, 1).reshape(4, 3, 2, 2), vectors(4, 2)
    reference = torch.nn.functional.batch_norm(
        weight.reshape(1, 4, -1), None, None, weight=gain, training=True, eps=1e-6
    ).reshape_as(weight)
    assert torch.allclose(standardized_weight(weight, gain, 1e-6), reference, rtol=1e-12, atol=1e-14)


@settings(derandomize=True, deadline=None, max_examples=60)
@given(
    st.integers(1, 4), st.integers(2, 5), kinds, seeds, st.sampled_from((0.0, 1e-5, 0.1)), st.sampled_from((0.0, 50.0))
)
def test_norm_is_enclosed(rows: int, n: int, kind: str, seed: int, eps: float, offset: float) -> None:
    """The fifty-digit norm lies between the bounds, which lie below the universal one."""
    weight, gain = vectors(rows * n, seed, 1.0, offset).reshape(rows, n), scales(rows, seed, kind)
    exact = []
    for row, g in zip(weight, digits(gain), strict=True):
        entries = digits(row)
        mean = mpmath.fsum(entries) / n
        root = mpmath.sqrt(mpmath.fsum((e - mean) ** 2 for e in entries) / n + mpmath.mpf(eps))
        exact.append([g * (e - mean) / root for e in entries])
    truth, bounds = exact_norm(exact), standardization_bounds(weight, gain, eps)
    assert bounds.lower <= truth * (1 + 1e-40) + 1e-300
    assert truth * (1 - 1e-40) <= bounds.upper <= bounds.universal
    assert bounds.upper - bounds.lower <= 1e-10 * bounds.upper
    limit = gain.abs() * math.sqrt(n)
    assert (bounds.row_norms <= limit * (1 + 1e-12)).all()


def test_the_universal_bound_is_attained_by_equal_filters() -> None:
    """Equal filters give a matrix of rank one and norm ``||gain|| sqrt(n)``."""
    weight = vectors(6, 3).expand(5, 6)
    bounds = standardization_bounds(weight, eps=0.0)
    assert bounds.upper == pytest.approx(bounds.universal, rel=1e-12)
    assert bounds.universal == pytest.approx(math.sqrt(30), rel=1e-14)


def test_filters_ignore_what_is_common_to_their_inputs() -> None:
    """Every filter sums to zero."""
    weight = standardized_weight(vectors(12, 2).reshape(3, 4))
    assert weight.sum(dim=1).abs().max() < 1e-14


@settings(derandomize=True, deadline=None, max_examples=40)
@given(st.integers(1, 3), st.integers(2, 4), kinds, seeds, st.sampled_from((1e-5, 0.1)))
def test_parameter_constant_equals_automatic_differentiation(
    rows: int, n: int, kind: str, seed: int, eps: float
) -> None:
    """The Jacobian of the effective weight by the weight."""
    weight, gain = vectors(rows * n, seed).reshape(rows, n), scales(rows, seed, kind)

    def standardize(w: torch.Tensor) -> torch.Tensor:
        y = w - w.mean(1, keepdim=True)
        return gain[:, None] * y / (y.square().mean(1, keepdim=True) + eps).sqrt()

    truth = jacobian_norm(standardize, weight)
    size = float((gain.abs() / (weight.var(1, correction=0) + eps).sqrt()).max())
    assert standardization_parameter_constant(weight, gain, eps) == pytest.approx(truth, rel=1e-9, abs=1e-12 * size)


def test_constant_filters_and_errors() -> None:
    """A constant filter has no standardization without a stabilizer."""
    assert standardization_parameter_constant(torch.ones(2, 3), eps=0.0) == math.inf
    with pytest.raises(InputError, match="not constant"):
        standardized_weight(torch.ones(2, 3), eps=0.0)
    with pytest.raises(InputError, match="one element per filter"):
        standardized_weight(torch.ones(2, 3), torch.ones(3))


class _Native(nn.Conv2d):
    """Standardized by the operation that batch_norm becomes in some graphs."""

    def forward(self, x: Tensor) -> Tensor:
        flat = self.weight.reshape(1, self.out_channels, -1)
        weight = torch.ops.aten._native_batch_norm_legit.no_stats(flat, None, None, True, 0.0, 1e-5)[0]
        return self._conv_forward(x, weight.reshape(self.weight.shape), self.bias)


class _Centred(nn.Linear):
    """A linear layer whose rows are centred and divided by their standard deviation, in two steps."""

    def forward(self, x: Tensor) -> Tensor:
        centred = self.weight - self.weight.mean(1, keepdim=True)
        return F.linear(x, centred * (centred.pow(2).mean(1, keepdim=True) + 1e-5).rsqrt() * 0.5, self.bias)


LAYERS: dict[str, tuple[nn.Module, tuple[int, ...], int]] = {
    "scaled, by batch_norm": (nn.Sequential(ScaledStdConv(3, 4, 3), nn.ReLU(), ScaledStdConv(4, 2, 1)), (3, 4, 4), 2),
    "scaled, fused": (WSConv(3, 4, 3), (3, 4, 4), 1),
    "by mean and variance": (StdConv(3, 4, 3), (3, 4, 4), 1),
    "by the native operation": (nn.Sequential(_Native(3, 4, 3), nn.ReLU(), _Native(4, 4, 1)), (3, 4, 4), 2),
    "of a linear layer": (_Centred(5, 4), (5,), 1),
}


@pytest.mark.parametrize("name", LAYERS)
def test_it_is_seen_in_networks(name: str) -> None:
    """Every one, once, with the bound of the effective weight."""
    model, shape, count = LAYERS[name]
    model = seeded(model)
    program = program_of(model, points(2, *shape))
    assert [s.kind for s in program.sites] == ["weight_standardization"] * count
    assert network_jacobian_norm(model, points(1, *shape)) <= upper_of(program) * (1 + 1e-9)


class _Class(nn.Module):
    """A normalized token that is put before the others."""

    def __init__(self) -> None:
        super().__init__()
        self.token, self.norm = nn.Parameter(torch.randn(1, 1, 6)), nn.LayerNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.norm(self.token).expand(x.shape[0], -1, -1), x], 1)


class _Queries(nn.Module):
    """Learned queries, normalized and projected, that attend to the input."""

    def __init__(self) -> None:
        super().__init__()
        self.latent, self.norm, self.project = nn.Parameter(torch.randn(2, 6)), nn.LayerNorm(6), nn.Linear(6, 6)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.project(self.norm(self.latent)).t())


class _RootMeanSquare(nn.Module):
    """A learned array through RMSNorm, multiplied with the input."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.norm = nn.Parameter(torch.randn(6)), nn.RMSNorm(6)

    def forward(self, x: Tensor) -> Tensor:
        return x * self.norm(self.scale)


def _axis_by_axis(w: Tensor) -> Tensor:
    """Return what the authors of weight standardization wrote."""
    w = w - w.mean(1, keepdim=True).mean(2, keepdim=True).mean(3, keepdim=True)
    return w / (w.view(len(w), -1).std(1).view(-1, 1, 1, 1) + 1e-5).expand_as(w)


def _both_at_once(w: Tensor) -> Tensor:
    deviation, mean = torch.std_mean(w, dim=[1, 2, 3], keepdim=True, unbiased=False)
    return 0.7 * (w - mean) / (deviation + 1e-3)


def _only_centred(w: Tensor) -> Tensor:
    return (w - w.mean((1, 2, 3), keepdim=True)) / (w.std() + 1e-5)


def _not_centred(w: Tensor) -> Tensor:
    return w / (w.std((1, 2, 3), keepdim=True) + 1e-5)


@pytest.mark.parametrize(
    ("form", "seen"),
    [(_axis_by_axis, True), (_both_at_once, True), (_only_centred, False), (_not_centred, False)],
)
def test_a_stabilizer_outside_the_root(form: Callable[[Tensor], Tensor], seen: bool) -> None:
    """The row is of the weight that is used, and what is no standardization has none."""

    class Standardized(nn.Conv2d):
        def forward(self, x: Tensor) -> Tensor:
            return F.conv2d(x, form(self.weight), self.bias)

    torch.manual_seed(3)
    layer = Standardized(3, 4, 3)
    result = analyze(nn.Sequential(layer, nn.ReLU()), torch.randn(2, 3, 6, 6), time=0, points=1, ascent=0)
    rows = [row for row in result.normalizers if row.kind == "weight_standardization"]
    assert [row.name for row in rows] == (["0"] if seen else [])
    effective = form(layer.weight.detach().double())
    for row in rows:
        assert row.proved.value >= float(torch.linalg.matrix_norm(effective.flatten(1), 2)) * (1 - 1e-6)


@pytest.mark.parametrize(
    ("model", "kind"),
    [(NormalizedArray(6), "layer_norm"), (_Class(), "layer_norm"), (_Queries(), "layer_norm"),
     (_RootMeanSquare(), "rms_norm")],
)  # fmt: skip
def test_a_normalized_array_that_is_no_weight_is_named_as_it_is(model: nn.Module, kind: str) -> None:
    """It is listed, changes nothing with the input, and is no weight standardization."""
    program = program_of(seeded(model), points(2, 3, 6))
    (site,) = program.sites
    assert (site.kind, site.of_array) == (kind, True)
    assert acts_on_weights(site)
    assert "learned array" in str(site_constants(site, None, "running").proved.statement)
