"""Each normalizer against its definition, computed directly."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.zoo.networks.normalizers import (
    NORMS,
    ChannelRMSNorm,
    group_count,
    normalizer,
    token_normalizer,
    weighted,
)


def images(seed: int = 0) -> torch.Tensor:
    """Return three images of eight channels."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(3, 8, 5, 5, generator=generator, dtype=torch.float64) * 3 + 1


@pytest.mark.parametrize(("norm", "axes"), [("bn", (0, 2, 3)), ("ln", (1, 2, 3)), ("in", (2, 3))])
def test_image_normalizers_standardize_over_their_axes(norm: str, axes: tuple[int, ...]) -> None:
    """Each subtracts the mean and divides by the deviation over the axes that define it."""
    x = images()
    layer = normalizer(norm, 8, 2).double().train()
    mean = x.mean(dim=axes, keepdim=True)
    variance = x.var(dim=axes, correction=0, keepdim=True)
    torch.testing.assert_close(layer(x), (x - mean) / torch.sqrt(variance + 1e-5))


def test_group_normalizer_standardizes_pairs_of_channels() -> None:
    """Eight channels make four groups of two."""
    x = images()
    groups = x.reshape(3, 4, -1)
    mean, variance = groups.mean(dim=2, keepdim=True), groups.var(dim=2, correction=0, keepdim=True)
    expected = ((groups - mean) / torch.sqrt(variance + 1e-5)).reshape(x.shape)
    torch.testing.assert_close(normalizer("gn", 8, 2).double()(x), expected)


def test_rms_of_images_divides_each_pixel_by_its_channels() -> None:
    """The channel version is the library's RMSNorm with channels last."""
    x = images()
    layer = normalizer("rms", 8, 2).double()
    assert isinstance(layer, ChannelRMSNorm)
    scale = torch.linspace(0.5, 2, 8, dtype=torch.float64)
    with torch.no_grad():
        layer.weight.copy_(scale)
    expected = torch.nn.functional.rms_norm(x.permute(0, 2, 3, 1), (8,), scale, 1e-5).permute(0, 3, 1, 2)
    torch.testing.assert_close(layer(x), expected)


@pytest.mark.parametrize("norm", ["bn", "ln", "gn", "rms"])
def test_vector_normalizers_accept_vectors(norm: str) -> None:
    """Normalized vectors have mean square one, over the batch or over the features."""
    x = torch.randn(64, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    y = normalizer(norm, 16, 1).double()(x)
    torch.testing.assert_close(y.square().mean(), torch.tensor(1.0, dtype=torch.float64), atol=1e-3, rtol=0)


@pytest.mark.parametrize("norm", ["wn", "sn", "none"])
@pytest.mark.parametrize("dimensions", [1, 2])
def test_others_leave_activations_alone(norm: str, dimensions: int) -> None:
    """Weight normalizers and none put no layer after the linear one."""
    assert isinstance(normalizer(norm, 4, dimensions), nn.Identity)


def test_weight_normalization_keeps_the_weight_and_splits_it() -> None:
    """The parametrized weight is g v / |v| and equals the old one."""
    layer = nn.Linear(5, 3, dtype=torch.float64)
    before = layer.weight.detach().clone()
    assert weighted(layer, "wn") is layer
    parametrization = layer.parametrizations.weight
    magnitude, direction = parametrization.original0, parametrization.original1
    torch.testing.assert_close(magnitude * direction / direction.norm(dim=1, keepdim=True), before)
    torch.testing.assert_close(layer.weight, before)


def test_spectral_normalization_divides_by_the_largest_singular_value() -> None:
    """After enough power iterations the norm by dense SVD is one."""
    torch.manual_seed(0)
    layer = weighted(nn.Linear(12, 7, dtype=torch.float64), "sn").train()
    with torch.no_grad():
        for _ in range(300):
            layer(torch.zeros(1, 12, dtype=torch.float64))
        norm = torch.linalg.svdvals(layer.eval().weight)[0]
    torch.testing.assert_close(norm, torch.tensor(1.0, dtype=torch.float64), atol=1e-6, rtol=0)


@pytest.mark.parametrize("least", [2, 8])
def test_groups_divide_channels_and_hold_enough(least: int) -> None:
    """No group has fewer than the least, unless all channels together do."""
    for channels in range(1, 130):
        groups = group_count(channels, least=least)
        assert channels % groups == 0
        assert groups <= 32
        assert channels // groups >= min(least, channels)


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    """The message lists what could have been meant."""
    for call in (lambda: normalizer("batch", 4, 2), lambda: weighted(nn.Linear(1, 1), "batch")):
        with pytest.raises(ValueError, match=f"{', '.join(NORMS)}, got 'batch'"):
            call()
    with pytest.raises(ValueError, match="ln, rms, none, got 'bn'"):
        token_normalizer("bn", 4)
    with pytest.raises(ValueError, match="Expected dimensions to be 1"):
        normalizer("bn", 4, 3)
    with pytest.raises(ValueError, match="would become constant"):
        normalizer("in", 4, 1)
