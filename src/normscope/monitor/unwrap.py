"""The user's own module inside what training wraps around it."""

from __future__ import annotations

import torch
from torch import nn

from normscope.core.errors import InputError

#: Wrappers that hold the model they wrap as ``module`` and compute the same function.
WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "AveragedModel")


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside ``torch.compile``, ``DistributedDataParallel`` and the like, in any order.

    Running it triggers neither compilation nor communication; its parameters are the ones being trained.

    Args:
        model: the model as it is trained.

    Raises:
        InputError: if it is no module, or its parameters are sharded over processes, so that no process holds them.

    >>> inner = nn.Linear(2, 2)
    >>> unwrapped(nn.DataParallel(inner)) is inner
    True
    """
    if not isinstance(model, nn.Module):
        raise InputError(f"Expected a torch.nn.Module, got {type(model).__name__}.")
    while True:
        kind = type(model).__name__
        if kind == "FullyShardedDataParallel" or any(type(p).__name__ == "DTensor" for p in model.parameters()):
            raise InputError(
                "Sharded models cannot be monitored: "
                "use DistributedDataParallel, or analyze a checkpoint with normscope.analyze."
            )
        name = "_orig_mod" if kind == "OptimizedModule" else "module" if kind in WRAPPERS else ""
        inner = getattr(model, name, None) if name else None
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def is_first_process() -> bool:
    """Tell whether this process is the one that measures: alone, or of rank 0.

    >>> is_first_process()
    True
    """
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0
