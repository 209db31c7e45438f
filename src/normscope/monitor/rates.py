"""Learning rates by parameter."""

from __future__ import annotations

from typing import Any

from torch import nn


def learning_rates(model: nn.Module, optimizer: Any = None, rate: float | None = None) -> dict[str, float]:
    """Return the learning rate of every parameter by each of its names.

    Args:
        model: the model.
        optimizer: where the rates are read, if they are not given; one without groups of parameters has none.
        rate: the rate of all parameters, where it is known.

    >>> import torch
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
    groups = getattr(optimizer, "param_groups", ())
    return {
        name: float(group["lr"])
        for group in groups
        for parameter in group["params"]
        for name in names.get(id(parameter), ())
    }
