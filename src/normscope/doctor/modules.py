"""Modules by their classes: normalizers, running statistics; and lists of channels as text."""

import re
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from normscope.core.errors import listed

BATCH_NORM = nn.modules.batchnorm._BatchNorm
_LIBRARY = (BATCH_NORM, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)


def batch_norms(model: nn.Module) -> Iterator[tuple[str, BATCH_NORM]]:
    """Yield every BatchNorm with its path.

    >>> [path for path, _ in batch_norms(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(1)))]
    ['1']
    """
    return ((path, module) for path, module in model.named_modules() if isinstance(module, BATCH_NORM))


def tracked(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor, Tensor]]:
    """Yield the path, module, mean and variance of every module with running statistics, whatever its class.

    >>> [path for path, *_ in tracked(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))]
    ['1']
    """
    for path, module in model.named_modules():
        mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
        if isinstance(mean, Tensor) and isinstance(variance, Tensor) and mean.numel() == variance.numel():
            yield path, module, mean, variance


def is_normalizer(module: nn.Module) -> bool:
    """Return whether a module is a normalizer, by its class or the name of its class.

    >>> is_normalizer(nn.LayerNorm(2)), is_normalizer(nn.ReLU())
    (True, False)
    """
    name = type(module).__name__
    return isinstance(module, _LIBRARY) or bool(re.search(r"(Norm|Normalization)(\dd)?$", name))


def role(path: str) -> str:
    """Return a path without its numbers, which is the same for layers at equal positions of equal blocks.

    >>> role("blocks.3.norm1")
    'blocks.*.norm1'
    """
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def listed_channels(indices: Iterable[int]) -> str:
    """Return a list of channels as text.

    >>> listed_channels([3]), listed_channels([0, 2])
    ('channel 3', 'channels 0, 2')
    """
    names = [str(i) for i in indices]
    return f"channel{'' if len(names) == 1 else 's'} {listed(names)}"
