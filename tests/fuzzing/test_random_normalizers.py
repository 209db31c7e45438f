"""Random normalizers: every kind is drawn, and each but those of fixed statistics takes the scale of its input away."""

from __future__ import annotations

import torch
from torch import nn

from fuzzing import random_normalizers
from fuzzing.draw import Draw, Function, Shape
from fuzzing.drawing import built, keeps, names_of

SHAPES: tuple[Shape, ...] = ((6,), (3, 4), (4, 3, 3))
#: Those that divide by numbers which are no statistics of their input, or only by a ratio of such.
FIXED = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)


def _all() -> list[tuple[nn.Module, Shape, int]]:
    found = []
    for shape in SHAPES:
        for seed in range(120):
            module = built(random_normalizers.normalizer, seed, shape)
            if module is not None:
                found.append((module, shape, seed))
    return found


def test_every_kind_is_drawn() -> None:
    """Torch's own, and all that are written out."""
    found = _all()
    names = names_of([module for module, _, _ in found])
    own = {"LayerNorm", "RMSNorm", "GroupNorm", "InstanceNorm2d", "BatchNorm1d", "BatchNorm2d"}
    written = {"channels first", "response", "normalize", "cosine", "rms", "layer", "layer max", "half centred"}
    assert own | written <= names, (own | written) - names
    assert len(found) >= 0.95 * 120 * len(SHAPES)


def test_samples_stay_apart_and_shapes_stay() -> None:
    """Each gives as many numbers as it takes, those of a sample whatever the others are."""
    for module, shape, seed in _all():
        x = Draw(seed + 1).tensor(3, *shape)
        y = keeps(module, x)
        assert y.shape == x.shape
        with torch.no_grad():
            assert torch.allclose(module(x[1:2]), y[1:2], rtol=1e-9, atol=1e-9), module


def test_the_scale_of_the_input_goes_away() -> None:
    """Far above every eps, ten times the input gives the same."""
    looked_at = 0
    for module, shape, seed in _all():
        fixed = isinstance(module, FIXED) or getattr(module, "track_running_stats", False)
        if fixed or getattr(module, "name", "") == "response":
            continue
        x = 1e6 * Draw(seed + 1).tensor(2, *shape)
        with torch.no_grad():
            assert torch.allclose(module(x), module(10.0 * x), rtol=1e-4, atol=1e-4), module
        looked_at += 1
    assert looked_at > 150


def test_both_ways_to_write_channels_first_agree() -> None:
    """By permutation and by hand, from the same numbers."""
    given: dict[str, list[Function]] = {}
    for seed in range(20):
        module = random_normalizers._channels_first(Draw(seed), (3, 4))
        given.setdefault(module.function.__name__, []).append(module)  # type: ignore[union-attr]
    assert set(given) == {"permuted", "by_hand"}
    x = 100.0 * Draw(5).tensor(2, 3, 4)
    for module in (m for modules in given.values() for m in modules):
        mean, std = x.mean(1, keepdim=True), x.std(1, keepdim=True, unbiased=False)
        truth = module.gamma.reshape(3, 1) * (x - mean) / std + module.beta.reshape(3, 1)  # eps is far below the spread
        with torch.no_grad():
            assert torch.allclose(module(x), truth, rtol=1e-3, atol=1e-3)
