"""Modules around a model that compute the same: ``torch.compile``, wrappers for several devices, averaged weights."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from normscope.core.errors import InputError

#: Wrappers that hold the model as ``module``; those for several devices come first.
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel", "AveragedModel")
_PARALLEL = _WRAPPERS[:3]


def require_module(model: Any) -> None:
    """Raise if a model is not a module.

    Raises:
        InputError: if it is anything else.

    >>> require_module(3)
    Traceback (most recent call last):
        ...
    normscope.core.errors.InputError: Expected a torch.nn.Module, got int. Build the model, or load it with normscope.load_model(...).
    """  # noqa: E501
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__} itself" if isinstance(model, type) else type(model).__name__
        raise InputError(
            f"Expected a torch.nn.Module, got {got}. Build the model, or load it with normscope.load_model(...)."
        )


def require_optimizer_of(model: nn.Module, optimizers: Iterable[Any]) -> None:
    """Raise if optimizers hold parameters, but none of the model's.

    Raises:
        InputError: if they are those of another model, or of a copy.

    >>> import torch
    >>> require_optimizer_of(nn.Linear(1, 1), [torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1)])
    Traceback (most recent call last):
        ...
    normscope.core.errors.InputError: Expected an optimizer of the model, but none of its parameters belongs to the model. Build it with model.parameters(), or leave it out.
    """  # noqa: E501
    held = {id(p) for each in optimizers for group in each.param_groups for p in group["params"]}
    if held and held.isdisjoint(map(id, model.parameters())):
        raise InputError(
            "Expected an optimizer of the model, but none of its parameters belongs to the model. "
            "Build it with model.parameters(), or leave it out."
        )


def uncompiled(model: nn.Module) -> nn.Module:
    """Return the module inside ``torch.compile(module)``: it computes the same, and compiling takes long.

    >>> inner = nn.Linear(2, 2)
    >>> uncompiled(inner) is inner
    True
    """
    inner = getattr(model, "_orig_mod", None)
    return inner if isinstance(inner, nn.Module) and type(model).__name__ == "OptimizedModule" else model


def unwrap(model: nn.Module) -> tuple[nn.Module, str]:
    """Return the module inside ``torch.compile`` and other wrappers, in any order, and the class of the parallel one.

    >>> inner = nn.Linear(2, 2)
    >>> unwrap(nn.DataParallel(inner)) == (inner, "DataParallel")
    True
    """
    parallel = ""
    while True:
        kind = next((c.__name__ for c in type(model).__mro__ if c.__name__ in _WRAPPERS), "")
        inner = getattr(model, "module", None) if kind else uncompiled(model)
        if inner is model or not isinstance(inner, nn.Module):
            return model, parallel
        parallel = kind if kind in _PARALLEL else parallel
        model = inner
