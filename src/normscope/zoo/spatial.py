"""Whether every InstanceNorm of a model has more than one value per channel to normalize."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import nn
from torch.nn.modules.instancenorm import _InstanceNorm

from normscope.core.errors import InputError
from normscope.zoo.randomness import seeded


def check_instance_norms(model: nn.Module, input_shape: Sequence[int]) -> None:
    r"""Return if every InstanceNorm gets maps of several values for inputs of a shape.

    Of a map of one value a channel the normalized value is :math:`(x - x)/\sqrt{0 + \epsilon} = 0` whatever ``x`` is:
    torch refuses it in the middle of a pass. Shapes alone are computed here; a model without InstanceNorm is not run.

    >>> net = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.InstanceNorm2d(4))
    >>> check_instance_norms(net, (3, 9, 9))
    >>> check_instance_norms(net, (3, 4, 4))
    Traceback (most recent call last):
    normscope.core.errors.InputError: norm='in' needs maps of several values, but 1 gets maps of 1x1...
    """
    layers = {name: layer for name, layer in model.named_modules() if isinstance(layer, _InstanceNorm)}
    if not layers:
        return
    of_input = "x".join(map(str, input_shape))

    def refusing(name: str) -> Any:
        def look(_: nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
            size = inputs[0].shape[2:]
            if math.prod(size) <= 1:
                raise InputError(
                    f"norm='in' needs maps of several values, but {name} gets maps of {'x'.join(map(str, size))} for "
                    f"inputs of {of_input}. Use larger images, or norm='ln' or 'gn'."
                )

        return look

    hooks = [layer.register_forward_pre_hook(refusing(name)) for name, layer in layers.items()]
    tensors = {name: x.to("meta") for each in (model.named_parameters(), model.named_buffers()) for name, x in each}
    try:
        # A pass that needs values cannot be made with shapes alone: torch's own message must do then.
        with seeded(0), torch.no_grad(), contextlib.suppress(RuntimeError):
            torch.func.functional_call(model, tensors, (torch.empty(2, *input_shape, device="meta"),))
    finally:
        for hook in hooks:
            hook.remove()
