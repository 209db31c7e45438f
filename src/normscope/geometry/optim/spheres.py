"""Which parameters live on spheres: weights whose scale a normalizer undoes, block by block."""

import torch

from normscope.geometry.candidates.scales import Scales
from normscope.geometry.discover import Symmetries


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
    sizes = {name: found.function.tensors[name].numel() for name in found.function.names}
    free = {g.parameters[0] for g in found.groups if g.kind == "shift" and g.dimension == sizes[g.parameters[0]]}
    spheres: dict[str, int] = {}
    for group in found.scale_invariant:
        family = group.family
        own = [name for name in group.parameters if name not in free]
        if not isinstance(family, Scales) or len(own) != 1:
            continue
        numbers = torch.arange(1.0, family.size + 1, dtype=torch.float64)
        exponents = family.exponents(numbers)[own[0]].reshape(-1)
        entries = exponents.numel() // family.size
        if entries > 1 and torch.equal(exponents, numbers.repeat_interleave(entries)):
            spheres[own[0]] = family.size
    return spheres
