"""Objects of the training loop: the module inside its wrappers, processes, optimizers and learning rates."""

from typing import Any

import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.graph.wrappers import require_module, unwrap


def unwrapped(model: nn.Module) -> nn.Module:
    """Return the module inside ``torch.compile``, ``DistributedDataParallel`` and the like, in any order.

    Running it triggers neither compilation nor communication; its parameters are the ones being trained.

    Raises:
        InputError: if it is not a module, or its parameters are sharded over processes, so that no process holds them.

    >>> inner = nn.Linear(2, 2)
    >>> unwrapped(nn.DataParallel(inner)) is inner
    True
    """
    require_module(model)
    inner, parallel = unwrap(model)
    if parallel == "FullyShardedDataParallel" or any(type(p).__name__ == "DTensor" for p in inner.parameters()):
        raise InputError(
            "Sharded models cannot be monitored: use DistributedDataParallel, or analyze a checkpoint with "
            "normscope.analyze."
        )
    return inner


def is_first_process() -> bool:
    """Return whether this process is the only one or has rank 0; only that one measures.

    >>> is_first_process()
    True
    """
    distributed = torch.distributed
    return not (distributed.is_available() and distributed.is_initialized()) or distributed.get_rank() == 0


def optimizers_of(optimizer: Any) -> tuple[Any, ...]:
    """Return none, one or several optimizers as a tuple.

    Raises:
        InputError: if one has no ``param_groups``.

    >>> layers = nn.Linear(1, 1), nn.Linear(1, 1)
    >>> len(optimizers_of([torch.optim.SGD(layer.parameters(), lr=0.1) for layer in layers]))
    2
    """
    if optimizer is None:
        return ()
    found = tuple(optimizer) if isinstance(optimizer, list | tuple) else (optimizer,)
    for each in found:
        if not hasattr(each, "param_groups"):
            raise InputError(
                f"Expected optimizer= to be an optimizer or a list of optimizers; {type(each).__name__} has no "
                "param_groups. Leave it out and pass lr= to step()."
            )
    return found


def learning_rates(model: nn.Module, optimizer: Any = None, rate: float | None = None) -> dict[str, float]:
    """Return the learning rate of every parameter by all of its names, from its optimizer or given for all.

    >>> model = nn.Linear(2, 2)
    >>> learning_rates(model, torch.optim.SGD([{"params": [model.bias], "lr": 0.5}], lr=0.1))
    {'bias': 0.5}
    >>> learning_rates(model, rate=0.25)
    {'weight': 0.25, 'bias': 0.25}
    """
    names: dict[int, list[str]] = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names.setdefault(id(parameter), []).append(name)
    if rate is not None:
        return {name: rate for each in names.values() for name in each}
    several = optimizer if isinstance(optimizer, list | tuple) else (optimizer,)
    groups = [group for each in several for group in getattr(each, "param_groups", ())]
    return {
        name: float(group["lr"])
        for group in groups
        for parameter in group["params"]
        for name in names.get(id(parameter), ())
    }
