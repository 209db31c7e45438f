"""Where normalizers stand: their kind, statistics and parameters are those of the module they come from."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, points, program_of, seeded
from normscope.operators.site import Site

#: A module, the shape of one sample of its input, and what it is.
SPREADING: dict[str, tuple[nn.Module, tuple[int, ...], str]] = {
    "layer norm": (nn.LayerNorm(5, eps=1e-3), (5,), "layer_norm"),
    "layer norm over two axes": (nn.LayerNorm((3, 4)), (2, 3, 4), "layer_norm"),
    "rms norm": (nn.RMSNorm(5, eps=1e-4), (2, 5), "rms_norm"),
    "group norm": (nn.GroupNorm(2, 4, eps=1e-2), (4, 3), "group_norm"),
    "instance norm": (nn.InstanceNorm2d(3, affine=True), (3, 4, 4), "instance_norm"),
}


def _site(model: nn.Module, shape: tuple[int, ...], batch: int = 1) -> Site:
    (site,) = program_of(model, points(2, *shape), batch=batch).sites
    return site


def _bare(module: Any, x: Tensor) -> Tensor:
    """Return what torch makes of an input without scale and shift."""
    with torch.no_grad():
        module.weight.fill_(1.0)
        if getattr(module, "bias", None) is not None:
            module.bias.fill_(0.0)
        return module(x)


@pytest.mark.parametrize("name", SPREADING)
def test_a_normalizer_of_its_own_input_has_its_spread(name: str) -> None:
    """Dividing by that spread is what torch does, up to scale and shift, which are the module's own."""
    module, shape, kind = SPREADING[name]
    module = seeded(module)
    site = _site(nn.Sequential(nn.Identity(), module), shape)
    assert (site.kind, site.owner, site.eps, site.running) == (kind, "1", module.eps, None)
    assert site.shape == (1, *shape)
    assert not site.written_out
    assert site.gamma is not None
    assert torch.equal(site.gamma, module.weight)  # type: ignore[arg-type]
    bias = getattr(module, "bias", None)
    assert site.beta is None if bias is None else torch.equal(site.beta, bias)  # type: ignore[arg-type]
    assert site.spread is not None
    x = points(1, *shape, seed=3)
    assert torch.allclose(site.spread.normalize(x), _bare(module, x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("module", "shape"),
    [(nn.BatchNorm1d(3), (3,)), (nn.BatchNorm2d(2, eps=1e-3), (2, 3, 3)), (nn.BatchNorm1d(4), (4, 2))],
)
def test_fixed_statistics_are_the_running_ones(module: nn.Module, shape: tuple[int, ...]) -> None:
    """And there is no spread."""
    module = seeded(module)
    site = _site(module, shape)
    assert (site.kind, site.spread, site.eps) == ("batch_norm", None, module.eps)
    assert site.running is not None
    assert torch.equal(site.running[0], module.running_mean)  # type: ignore[arg-type]
    assert torch.equal(site.running[1], module.running_var)  # type: ignore[arg-type]


def test_batch_norm_without_running_statistics_has_the_spread_of_the_batch() -> None:
    """Over all samples of it."""
    module = seeded(nn.BatchNorm1d(3, track_running_stats=False))
    site = _site(module, (3,), batch=2)
    assert (site.kind, site.running) == ("batch_norm", None)
    assert site.spread is not None
    x = points(2, 3, seed=1)
    assert torch.allclose(site.spread.normalize(x), _bare(module, x), rtol=1e-12, atol=1e-12)


def test_a_normalizer_behind_another_has_its_own_core() -> None:
    """Not the one of the first, however many linear maps lie between."""
    model = seeded(nn.Sequential(nn.LayerNorm(4, eps=0.5), nn.Linear(4, 3), nn.LayerNorm(3, eps=0.25)))
    first, second = program_of(model, points(2, 4)).sites
    assert (first.owner, second.owner) == ("0", "2")
    assert first.spread is not None
    assert second.spread is not None
    assert (first.spread.size, first.spread.eps) == (4, 0.5)
    assert (second.spread.size, second.spread.eps) == (3, 0.25)
    assert first.node != second.source
    fixed = seeded(nn.Sequential(nn.LayerNorm(4), nn.Linear(4, 3), nn.BatchNorm1d(3)))
    _, batch = program_of(fixed, points(2, 4)).sites
    assert batch.spread is None
    assert batch.running is not None
    assert torch.equal(batch.running[1], fixed[2].running_var)  # type: ignore[index, union-attr, arg-type]


def test_the_default_eps_of_rms_norm_is_the_one_torch_takes() -> None:
    """Where the call names none."""
    site = _site(seeded(nn.RMSNorm(4)), (4,))
    assert site.eps == torch.finfo(torch.float64).eps


def test_written_out_normalizers_are_named_by_their_axes() -> None:
    """The same formula along other axes is another normalizer."""

    def normalized(x: Tensor, axes: tuple[int, ...]) -> Tensor:
        return (x - x.mean(axes, keepdim=True)) / (x.var(axes, keepdim=True, unbiased=False) + 1e-3).sqrt()

    for axes, kind in (((2, 3), "instance_norm"), ((1, 2, 3), "layer_norm")):
        site = _site(Lambda(lambda s, x, axes=axes: normalized(x, axes)), (2, 3, 3))
        assert (site.kind, site.eps, site.written_out) == (kind, 1e-3, True)
