"""The work of a forward pass against torch's own count."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from networks import points, program_of, seeded
from normscope.lipschitz.cost import forward_cost, is_large
from normscope.zoo.networks.resnet import ResNet

NETWORKS = {
    "vectors": (nn.Sequential(nn.Linear(5, 7), nn.ReLU(), nn.Linear(7, 3)), (5,)),
    "tokens": (nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 2)), (11, 6)),
    "sequence": (nn.Sequential(nn.Conv1d(3, 4, 5, dilation=2), nn.ReLU()), (3, 20)),
    "images": (
        nn.Sequential(
            nn.Conv2d(3, 8, 3, padding=1),
            nn.ReLU(),
            nn.Conv2d(8, 4, 3, stride=2, groups=2),
            nn.Flatten(),
            nn.Linear(36, 2),
        ),
        (3, 8, 8),
    ),
    "volumes": (nn.Sequential(nn.Conv3d(2, 4, 3), nn.ReLU()), (2, 5, 6, 7)),
    "upwards": (nn.Sequential(nn.ConvTranspose2d(3, 4, 2, stride=2), nn.ReLU()), (3, 5, 5)),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_multiplications_are_those_torch_counts(name: str) -> None:
    """One of each pair of flops, and one operation for every entry of a nonlinearity or input."""
    network, shape = NETWORKS[name]
    model = seeded(network)
    x = points(2, *shape)
    program = program_of(model, x)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        model(x[:1])
    entries = sum(atom.numel for atom in program.atoms)
    assert forward_cost(program) == counter.get_total_flops() / 2 + entries


@pytest.mark.turns(2)
def test_what_counts_as_large() -> None:
    """A narrow ResNet-18 on images of 32 pixels does not; one layer of the usual width on 80 pixels does."""
    small = program_of(seeded(ResNet(classes=10, image_size=32, width=16)), points(2, 3, 32, 32))
    assert not is_large(small)
    layer = program_of(seeded(nn.Conv2d(64, 64, 3, padding=1)), points(1, 64, 80, 80))
    assert is_large(layer)


def test_many_small_operations_are_large_too() -> None:
    """Each costs some microseconds of Python, however small its matrices."""
    deep = program_of(seeded(nn.Sequential(*[nn.ReLU() for _ in range(3)])), points(1, 2))
    deep.total = 3_000
    assert is_large(deep)
