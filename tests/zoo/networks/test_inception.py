"""Inception blocks: four branches side by side."""

from __future__ import annotations

import torch

from normscope.zoo.networks.inception import Inception, InceptionBlock


def test_branches_are_concatenated_in_order() -> None:
    """Each quarter of the channels is one branch."""
    torch.manual_seed(0)
    block = InceptionBlock(5, 3, "bn").eval()
    x = torch.randn(2, 5, 6, 6)
    parts = block(x).split(3, dim=1)
    for part, branch in zip(parts, (block.one, block.three, block.five, block.pool), strict=True):
        torch.testing.assert_close(part, branch(x))


def test_branches_see_their_own_neighbourhoods() -> None:
    """A change of one pixel spreads over 1, 3, 5 and 3 pixels."""
    torch.manual_seed(0)
    block = InceptionBlock(2, 2, "none").double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.abs_()  # so that no ReLU hides the change
    x = torch.zeros(1, 2, 9, 9, dtype=torch.float64)
    moved = x.clone()
    moved[:, :, 4, 4] = 100.0
    widths = []
    for branch in (block.one, block.three, block.five, block.pool):
        changed = (branch(moved) - branch(x)).abs().sum(dim=(0, 1)) > 0
        widths.append(int(changed.any(dim=0).sum()))
    assert widths == [1, 3, 5, 3]


def test_default_network_maps_images_to_logits() -> None:
    """Three stages, two pools."""
    model = Inception(width=4).eval()
    assert model.features(torch.zeros(1, 3, 32, 32)).shape == (1, 32, 8, 8)
