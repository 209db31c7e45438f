"""Alignment: a randomly transformed copy comes back exactly, another network does not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.geometry.align import align, interpolation
from normscope.geometry.candidates.matrices import Mixing
from normscope.geometry.candidates.permutations import permutation, places_of, spaces_of
from normscope.geometry.candidates.scales import Scales
from normscope.geometry.discover import Symmetries, symmetry
from normscope.geometry.labelling import Labelling
from normscope.zoo.catalogue import build, example_input
from symmetric_networks import Attention, randomized


def transformed(found: Symmetries, *, matrices: bool = False, seed: int = 3) -> dict[str, Tensor]:
    """Return a copy moved by random scales and permutations, or by random matrices."""
    function, generator = found.function, torch.Generator().manual_seed(seed)
    labels = Labelling(function).run()
    point: dict[str, Tensor] = dict(function.tensors)
    for group in found.groups:
        if isinstance(group.family, Mixing if matrices else Scales):
            assert group.family is not None
            drawn = torch.randn(group.family.size, generator=generator, dtype=torch.float64) * 0.5
            point |= group.family.move(point, drawn, 1.0)
            if isinstance(group.family, Scales):
                rates = group.family.of_labels(drawn)
                for mean, variance, inputs in group.family.labels.statistics:
                    factor = rates[inputs.clamp_min(0)].exp()
                    point |= {mean: point[mean] * factor, variance: point[variance] * factor.square()}
    if not matrices:
        places = places_of(function, labels)
        for space in spaces_of(function, labels, places):
            order = torch.randperm(len(space.units), generator=generator).tolist()
            point |= places.permuted(point, permutation(space, order))
    return point


def zoo(name: str, **options: int) -> Symmetries:
    """Return the symmetries of a network of the zoo."""
    model = randomized(build(name, **options)).float()
    return symmetry(model, example_input(name, 3, **options), batch=3)


VIT = {"image_size": 16, "patch": 8, "width": 12, "depth": 2, "heads": 2, "classes": 4}


@pytest.mark.parametrize(
    ("name", "options"),
    [("resnet20", {"width": 4}), ("lstm", {"hidden": 8}), ("vit_tiny", VIT)],
    ids=["resnet20", "lstm", "vit"],
)
def test_a_transformed_copy_comes_back(name: str, options: dict[str, int]) -> None:
    found = zoo(name, **options)
    result = align(found, transformed(found))
    assert result.before > 0.1
    assert result.same
    assert result.moved > 0


def test_biases_that_are_added_to_each_other_come_back() -> None:
    torch.manual_seed(0)
    found = symmetry(randomized(Recurrent()), torch.randn(4, 5, 3, dtype=torch.float64))
    point: dict[str, Tensor] = dict(found.function.tensors)
    (shift,) = (g.family for g in found.groups if g.kind == "shift")
    assert shift is not None
    result = align(found, {**point, **shift.move(point, torch.randn(shift.size, dtype=torch.float64), 1.0)})
    assert result.before > 0.1
    assert result.same


class Recurrent(nn.Module):
    """A layer, an LSTM and a classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(3, 4, batch_first=True), nn.Linear(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores."""
        return self.head(self.layer(x)[0])


def test_heads_units_and_scales_of_attention() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4, 8, dtype=torch.float64)
    found = symmetry(randomized(Attention(width=8)), x)
    assert align(found, transformed(found)).same


def test_matrices_of_heads_and_rotations() -> None:
    torch.manual_seed(0)
    x = torch.randn(4, 4, 8, dtype=torch.float64)
    for model in (Attention(nn.RMSNorm, bias=False), Attention()):
        found = symmetry(randomized(model), x)
        result = align(found, transformed(found, matrices=True))
        assert result.before > 0.1
        assert result.same


def test_another_network_stays_apart_but_comes_nearer() -> None:
    torch.manual_seed(0)
    make = lambda: nn.Sequential(nn.Linear(3, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 2)).double()  # noqa: E731
    one, two = make(), make()
    found = symmetry(one, torch.randn(16, 3).double(), batch=16)
    result = align(found, two.state_dict())
    assert not result.same
    assert result.after < result.before
    losses = interpolation(found, result.state, found.function.targets(), 5)
    assert len(losses) == 5


def test_wrong_architecture() -> None:
    found = symmetry(nn.Linear(3, 2), torch.randn(4, 3))
    with pytest.raises(InputError, match="lack"):
        align(found, {})
    with pytest.raises(InputError, match="shapes"):
        align(found, nn.Linear(4, 2).state_dict())
