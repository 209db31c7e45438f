"""What modules show without being run: which ones normalize, by class, and how channels are listed."""

import re
from collections.abc import Iterable, Iterator

from torch import Tensor, nn

from normscope.core.errors import listed

BATCH_NORM = nn.modules.batchnorm._BatchNorm
_LIBRARY = (BATCH_NORM, nn.modules.instancenorm._InstanceNorm, nn.GroupNorm, nn.LayerNorm, nn.RMSNorm)
#: Wrappers that hold the model they wrap as ``module`` and compute the same, and those of several devices.
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "AveragedModel")
_PARALLEL = _WRAPPERS[:3]


def unwrap(model: nn.Module) -> tuple[nn.Module, str]:
    """Return the user's own module inside ``torch.compile`` and parallel wrappers, and the wrapper of many devices.

    >>> inner = nn.Linear(2, 2)
    >>> unwrap(nn.DataParallel(inner)) == (inner, "DataParallel")
    True
    """
    parallel = ""
    while True:
        kind = type(model).__name__
        name = "_orig_mod" if kind == "OptimizedModule" else "module" if kind in _WRAPPERS else ""
        inner = getattr(model, name, None) if name else None
        if not isinstance(inner, nn.Module):
            return model, parallel
        parallel = kind if kind in _PARALLEL else parallel
        model = inner


def batch_norms(model: nn.Module) -> Iterator[tuple[str, BATCH_NORM]]:
    """Yield every BatchNorm with its path.

    >>> [path for path, _ in batch_norms(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(1)))]
    ['1']
    """
    return ((path, module) for path, module in model.named_modules() if isinstance(module, BATCH_NORM))


def tracked(model: nn.Module) -> Iterator[tuple[str, nn.Module, Tensor, Tensor]]:
    """Yield every module with a running mean and variance, whatever its class, with its path and both.

    >>> [path for path, *_ in tracked(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)))]
    ['1']
    """
    for path, module in model.named_modules():
        mean, variance = getattr(module, "running_mean", None), getattr(module, "running_var", None)
        if isinstance(mean, Tensor) and isinstance(variance, Tensor) and mean.numel() == variance.numel():
            yield path, module, mean, variance


def is_normalizer(module: nn.Module) -> bool:
    """Return whether a module normalizes, by its class: one of torch's, or one that is called so.

    >>> is_normalizer(nn.LayerNorm(2)), is_normalizer(nn.ReLU())
    (True, False)
    """
    name = type(module).__name__
    return isinstance(module, _LIBRARY) or bool(re.search(r"(Norm|Normalization)(\dd)?$", name))


def role(path: str) -> str:
    """Return a path with its numbers left out: layers of one role stand at equal places of equal blocks.

    >>> role("blocks.3.norm1")
    'blocks.*.norm1'
    """
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", path)


def listed_channels(indices: Iterable[int]) -> str:
    """Return channels by their numbers, in words.

    >>> listed_channels([3]), listed_channels([0, 2])
    ('channel 3', 'channels 0, 2')
    """
    names = [str(i) for i in indices]
    return f"channel{'' if len(names) == 1 else 's'} {listed(names)}"
