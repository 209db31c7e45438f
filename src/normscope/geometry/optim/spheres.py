"""Which parameters live on spheres: weights whose scale a normalizer undoes, block by block."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.geometry.candidates.scales import Scales
from normscope.geometry.discover import Symmetries
from normscope.geometry.groups import Group
from normscope.geometry.sphere import project


def spheres_of(found: Symmetries) -> dict[str, int]:
    """Return the parameters that are scale-invariant by themselves, and into how many vectors each one falls.

    One vector per output before BatchNorm or InstanceNorm and for weight normalization, one per group before GroupNorm,
    one in all before LayerNorm or RMSNorm. Weights that are invariant only together with others are left out; a bias
    beside a weight does not count where it may be shifted freely.

    Args:
        found: the symmetries of the model.

    >>> from torch import nn
    >>> from normscope.geometry.discover import symmetry
    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 2))
    >>> spheres_of(symmetry(net, torch.randn(4, 3, 8, 8)))
    {'0.weight': 8}
    """
    free = {g.parameters[0] for g in found.groups if g.kind == "shift" and _every_entry(found, g)}
    spheres: dict[str, int] = {}
    for group in found.scale_invariant:
        family = group.family
        own = [name for name in group.parameters if name not in free]
        if not isinstance(family, Scales) or len(own) != 1:
            continue
        exponents = family.exponents(torch.arange(1.0, family.size + 1, dtype=torch.float64))[own[0]]
        if exponents.numel() % family.size:
            continue
        blocks = exponents.reshape(family.size, -1)
        expected = torch.arange(1.0, family.size + 1, dtype=torch.float64)[:, None]
        if blocks.shape[1] > 1 and bool((blocks == expected).all()):
            spheres[own[0]] = family.size
    return spheres


def _every_entry(found: Symmetries, group: Group) -> bool:
    """Tell whether a shift moves every entry of its parameter freely."""
    return group.dimension == found.function.tensors[group.parameters[0]].numel()


def blocks_of(tensor: Tensor, blocks: int) -> Tensor:
    """Return a view of a parameter with one vector per row."""
    return tensor.reshape(blocks, -1)


def tangent_(gradient: Tensor, parameter: Tensor, blocks: int) -> None:
    """Take the radial part out of a gradient, in place."""
    rows = blocks_of(parameter, blocks)
    gradient.copy_(project(rows, blocks_of(gradient, blocks)).reshape(gradient.shape))


def check_names(wanted: Iterable[str], known: Iterable[str]) -> None:
    """Raise if a name is not that of a parameter.

    Raises:
        InputError: with the names.
    """
    unknown = sorted(set(wanted) - set(known))
    if unknown:
        raise InputError(f"Unknown parameters: {', '.join(unknown)}.")
