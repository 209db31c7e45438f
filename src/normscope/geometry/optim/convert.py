"""Turn a stock optimizer into one that knows which weights live on spheres: those whose scale a normalizer undoes."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.geometry.candidates.scales import Scales
from normscope.geometry.discover import Symmetries, symmetry
from normscope.geometry.optim.adam import RiemannianAdam
from normscope.geometry.optim.sgd import RiemannianSGD

_TWINS: dict[type[torch.optim.Optimizer], type[RiemannianSGD] | type[RiemannianAdam]] = {
    torch.optim.SGD: RiemannianSGD,
    torch.optim.Adam: RiemannianAdam,
    torch.optim.AdamW: RiemannianAdam,
}


def spheres_of(found: Symmetries) -> dict[str, int]:
    """Return the parameters that are scale-invariant by themselves, and into how many vectors each one falls.

    One vector per output before BatchNorm or InstanceNorm and for weight normalization, one per group before GroupNorm,
    one in all before LayerNorm or RMSNorm. Weights that are invariant only together with others are left out; a bias
    beside a weight does not count where it may be shifted freely.

    Args:
        found: the symmetries of the model.

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


def riemannian(
    model: nn.Module,
    optimizer: type[torch.optim.Optimizer],
    data: Any = None,
    *,
    spheres: Mapping[str, int] | None = None,
    params: Any = None,
    input_shape: tuple[int, ...] | None = None,
    **options: Any,
) -> RiemannianSGD | RiemannianAdam:
    """Return an optimizer that moves scale-invariant weights on their spheres and all others as the given one does.

    The weights keep their values and lengths; the model's state dict does not change its form. Checkpoints of the
    optimizer are loaded into one made by the same call.

    Args:
        model: the model to be trained.
        optimizer: ``torch.optim.SGD``, ``Adam`` or ``AdamW``.
        data: a few inputs, to find the scale-invariant weights with; guessed if there are none.
        spheres: the weights on spheres and their numbers of vectors, if they are known already.
        params: parameters or groups, as for the optimizer; all of the model's by default.
        input_shape: shape of one input without batch axis, if there is no data and it cannot be guessed.
        **options: of the optimizer.

    Raises:
        InputError: if the optimizer has no twin on spheres, or a name is unknown.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    >>> type(riemannian(net, torch.optim.AdamW, torch.randn(8, 3), lr=1e-3)).__name__
    'RiemannianAdam'
    """
    twin = _TWINS.get(optimizer)
    if twin is None:
        raise InputError(f"Expected torch.optim.SGD, Adam or AdamW, got {getattr(optimizer, '__name__', optimizer)}.")
    if optimizer is torch.optim.Adam and options.get("weight_decay"):
        raise InputError("Use torch.optim.AdamW for weight decay, which is decoupled there.")
    if optimizer is torch.optim.Adam:
        options = {"weight_decay": 0.0, **options}
    named = dict(model.named_parameters())
    if spheres is None:
        spheres = spheres_of(symmetry(model, data, input_shape=input_shape))
    unknown = sorted(set(spheres) - set(named))
    if unknown:
        raise InputError(f"Unknown parameters: {', '.join(unknown)}.")
    given = model.parameters() if params is None else params
    return twin(given, spheres={named[name]: blocks for name, blocks in spheres.items()}, **options)
