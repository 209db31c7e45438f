"""Training: repeatable, quick on digits, and He's variance."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError, NonFiniteError
from normscope.zoo.catalogue import build
from normscope.zoo.data.load import load_data
from normscope.zoo.networks.normalizers import weighted
from normscope.zoo.train import fan_in, he_normal_, train


def trained(norm: str, **settings: object) -> tuple[nn.Module, object]:
    """Return a network trained on the digits, and its run."""
    images, labels = load_data("digits", split="train").tensors()
    model = build("relu10", norm=norm, width=128, in_features=64)
    he_normal_(model, torch.Generator().manual_seed(0))
    return model, train(model, images, labels, **settings)


@pytest.mark.parametrize("norm", ["none", "bn"])
def test_digits_are_learnt_in_seconds(norm: str) -> None:
    """More than nine in ten of the images not trained on are right."""
    model, run = trained(norm, epochs=12)
    images, labels = load_data("digits", split="test").tensors()
    with torch.no_grad():
        right = (model(images).argmax(dim=1) == labels).double().mean()
    assert right > 0.88
    assert run.accuracy > 0.97
    assert run.losses[-1] < 0.1 * run.losses[0]
    assert run.steps == 12 * (1437 // 128)
    assert not model.training


def test_same_seed_same_weights_and_generators_untouched() -> None:
    """Another seed, other weights; dropout included."""
    x = torch.randn(100, 6, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    weights = []
    state = torch.get_rng_state()
    for seed in (0, 0, 1):
        model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        he_normal_(model, torch.Generator().manual_seed(0))
        torch.set_rng_state(state)
        train(model, x, y, epochs=2, batch=16, seed=seed)
        assert torch.equal(state, torch.get_rng_state())
        assert all(parameter.grad is None for parameter in model.parameters())
        weights.append(model[0].weight.detach().clone())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


def test_one_step_is_adams() -> None:
    """The first Adam step moves each weight by lr against the sign of its gradient with decay."""
    x = torch.randn(8, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.arange(8) % 2
    model = nn.Linear(3, 2, dtype=torch.float64)
    before = model.weight.detach().clone()
    loss = nn.functional.cross_entropy(model(x), y)
    (gradient,) = torch.autograd.grad(loss, [model.weight])
    gradient = gradient + 0.5 * before
    run = train(model, x, y, epochs=1, lr=0.01, weight_decay=0.5, batch=8)
    expected = before - 0.01 * gradient / (gradient.abs() + 1e-8)
    torch.testing.assert_close(model.weight.detach(), expected)
    assert run.losses == pytest.approx([float(loss.detach())])


def test_the_clock_stops_the_run() -> None:
    """Seconds bound the time, and each epoch is reported."""
    seen: list[int] = []
    _, run = trained("none", seconds=0.3, progress=lambda epoch, loss: seen.append(epoch))
    assert 0.3 <= run.seconds < 3
    assert seen == list(range(1, len(run.losses) + 1))


@pytest.mark.parametrize(
    ("layer", "expected"),
    [
        (nn.Linear(100, 200), 100),
        (nn.Conv2d(16, 32, 3), 144),
        (nn.Conv2d(16, 32, 3, groups=4), 36),
        (nn.ConvTranspose2d(16, 32, 2), 64),
    ],
)
def test_he_variance(layer: nn.Module, expected: int) -> None:
    """The weights' variance is two over the fan-in, within five standard errors; biases are zero."""
    assert fan_in(layer) == expected
    he_normal_(layer, torch.Generator().manual_seed(0))
    ratio = layer.weight.detach().double().square().mean().item() * expected / 2
    assert abs(ratio - 1) < 5 * math.sqrt(2 / layer.weight.numel())
    assert layer.bias.detach().abs().max() == 0


@pytest.mark.parametrize("norm", ["wn", "sn"])
def test_he_sets_parametrized_weights_too(norm: str) -> None:
    """Weight normalization keeps the drawn weight; spectral normalization stores it before division."""
    plain, layer = nn.Linear(20, 10), weighted(nn.Linear(20, 10), norm)
    for module in (plain, layer):
        he_normal_(module, torch.Generator().manual_seed(0))
    stored = layer.weight if norm == "wn" else layer.parametrizations.weight.original
    torch.testing.assert_close(stored, plain.weight)


def test_normalizers_keep_their_values() -> None:
    """Scale one and shift zero are left alone."""
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    nn.init.constant_(model[1].bias, 0.25)
    he_normal_(model, torch.Generator().manual_seed(0))
    assert model[1].bias.tolist() == [0.25] * 3


def test_mistakes_are_named() -> None:
    """Data and settings that make no sense, and a loss that explodes."""
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    for settings in ({}, {"seconds": 1.0, "epochs": 1}):
        with pytest.raises(InputError, match="Expected either seconds or epochs"):
            train(nn.Linear(2, 2), x, y, **settings)
    with pytest.raises(InputError, match="4 images and 3 labels"):
        train(nn.Linear(2, 2), x, y[:3], epochs=1)
    with pytest.raises(InputError, match="Expected integer labels"):
        train(nn.Linear(2, 2), x, y.float(), epochs=1)
    with pytest.raises(InputError, match="Expected batch >= 2"):
        train(nn.Linear(2, 2), x, y, epochs=1, batch=1)
    with pytest.raises(NonFiniteError, match=r"became nan. Lower the learning rate lr"):
        train(nn.Linear(2, 2), x + float("nan"), y, epochs=1)
