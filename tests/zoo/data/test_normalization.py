"""Normalization: the affine map, its presets and what does not fit."""

from __future__ import annotations

import pytest
import torch

from normscope.core.errors import InputError
from normscope.zoo.data.normalization import PRESETS, Normalization, normalization


def test_map_written_out() -> None:
    """Each channel has its own mean and deviation."""
    raw = torch.randint(256, (2, 3, 4, 5), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
    x = normalization("imagenet", 255.0, (3, 4, 5))(raw)
    mean, std = PRESETS["imagenet"]
    for channel in range(3):
        expected = (raw[:, channel].double() / 255 - mean[channel]) / std[channel]
        torch.testing.assert_close(x[:, channel].double(), expected, atol=1e-6, rtol=0)
    assert x.dtype == torch.float32


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_precision_is_kept_or_raised_to_float32(dtype: torch.dtype) -> None:
    """Only float64 stays what it is."""
    x = Normalization("unit", 2.0)(torch.ones(2, 3).to(dtype))
    assert x.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert x.tolist() == [[0.5] * 3] * 2


def test_raw_is_the_identity() -> None:
    """Not even the scale is touched."""
    raw = torch.tensor([[0, 7, 255]], dtype=torch.uint8)
    assert normalization("raw", 255.0, (3,))(raw).tolist() == [[0.0, 7.0, 255.0]]


def test_one_mean_fits_every_shape() -> None:
    """Vectors and images."""
    for shape in ((4,), (3, 2, 2)):
        x = normalization(((0.5,), (0.25,)), 1.0, shape)(torch.ones(2, *shape))
        assert torch.equal(x, torch.full((2, *shape), 2.0))


def test_misfits_are_refused() -> None:
    """Unknown presets, channels that do not fit, deviations that are not positive."""
    with pytest.raises(InputError, match=r"raw, unit, imagenet.*got 'imagnet'"):
        normalization("imagnet", 255.0, (3, 2, 2))
    with pytest.raises(
        InputError, match=r"imagenet has 3 means and 3 deviations, and the data have shape \(1, 28, 28\)"
    ):
        normalization("imagenet", 255.0, (1, 28, 28))
    with pytest.raises(InputError, match="Expected positive"):
        normalization(((0.0,), (0.0,)), 1.0, (1, 2, 2))
