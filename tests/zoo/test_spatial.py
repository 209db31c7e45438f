"""InstanceNorm of maps with one pixel is refused before anything runs; every other combination can be trained."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.zoo import catalogue as zoo
from normscope.zoo.networks.efficientnet import EfficientNet
from normscope.zoo.networks.normalizers import NORMS
from normscope.zoo.spatial import check_instance_norms
from normscope.zoo.train import train


def _images(count: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.arange(count) % 10


@pytest.mark.parametrize("side", [1, 2, 3, 4, 5, 9])
def test_it_refuses_exactly_what_torch_refuses(side: int) -> None:
    """In the same model, on sides around the limit; nothing of the model moves."""
    net = nn.Sequential(nn.Conv2d(1, 2, 3, 2, 1), nn.BatchNorm2d(2), nn.InstanceNorm2d(2), nn.Dropout(0.5))
    before = {name: x.clone() for name, x in net.state_dict().items()}
    random = torch.get_rng_state()
    try:
        check_instance_norms(net, (1, side, side))
        refused = False
    except InputError as error:
        refused = "1x1" in str(error)
    assert torch.equal(torch.get_rng_state(), random)
    assert all(torch.equal(x, before[name]) for name, x in net.state_dict().items())
    assert not net[2]._forward_pre_hooks
    if refused:
        with pytest.raises(ValueError, match="spatial element"):
            net(torch.zeros(2, 1, side, side))
    else:
        assert net(torch.zeros(2, 1, side, side)).shape[0] == 2


def test_the_builder_refuses_images_that_become_one_pixel() -> None:
    """It knows their size; larger ones pass."""
    with pytest.raises(InputError, match="maps of 1x1 for inputs of 3x32x32"):
        zoo.build("efficientnet_b3", norm="in", image_size=32, classes=10)
    assert zoo.build("efficientnet_b0", norm="in", image_size=64, classes=10, width=0.25) is not None


def test_the_trainer_refuses_smaller_images_than_the_network_was_built_for() -> None:
    """Before the first step."""
    model = zoo.build("resnet18", norm="in", classes=10, width=4)
    with pytest.raises(InputError, match=r"layer4\.0\.bn1 gets maps of 1x1"):
        train(model, *_images(), epochs=1, batch=4)


@pytest.mark.turns(3)
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("network", ["relu10", "resnet18", "efficientnet_b3"])
def test_every_norm_on_the_networks_of_the_figures(network: str, norm: str) -> None:
    """Narrow, one update on images of 32 pixels; InstanceNorm has nothing to do in any of them, and that is told."""
    images, labels = _images()

    def one_step() -> float:
        model: nn.Module
        if network == "efficientnet_b3":
            model = EfficientNet(norm, 10, 32, 0.25, 1.4)
        else:
            width = {"relu10": {"width": 16}, "resnet18": {"width": 4, "classes": 10}}[network]
            model = zoo.build(network, norm=norm, **width)
        return train(model, images, labels, epochs=1, batch=4).losses[0]

    if norm == "in":
        with pytest.raises(Exception, match="several values") as caught:
            one_step()
        assert caught.type.__module__ == "normscope.core.errors"
    else:
        assert 0.0 < one_step() < 100.0
