"""A fingerprint of everything that analysing a model must leave alone, for tests."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from normscope.core.environment import flags, rng_state
from normscope.graph.guard import bits
from normscope.graph.model_state import ModelState


def fingerprint(model: nn.Module, *tensors: Tensor) -> str:
    """Return a hash of a model, further tensors, the random generators and torch's settings.

    It changes with any bit of a parameter, buffer or gradient, with ``requires_grad``, ``training``, hooks, any
    attribute of any submodule, the random states of Python, numpy and torch, and torch's global settings. Objects
    that are not data count by identity, so fingerprints are compared within one process only.

    Args:
        model: the model to look at; it is not run.
        tensors: further tensors, such as inputs.

    Returns:
        The hexadecimal digest.

    >>> layer = nn.Linear(2, 2)
    >>> before = fingerprint(layer)
    >>> _ = layer(torch.ones(1, 2))
    >>> fingerprint(layer) == before
    True
    >>> _ = layer.eval()
    >>> fingerprint(layer) == before
    False
    """
    digest = hashlib.sha256()
    for piece in _pieces(model, tensors):
        digest.update(piece)
        digest.update(b"\0")
    return digest.hexdigest()


def _pieces(model: nn.Module, tensors: tuple[Tensor, ...]) -> Iterable[bytes]:
    """Yield the parts of the state as bytes."""
    for path, module in model.named_modules():
        yield f"{path} {type(module)} {module.training}".encode()
        yield from (f"{key} {_name(value)}".encode() for key, value in vars(module).items())
    named = (*ModelState(model).tensors, *((str(i), tensor) for i, tensor in enumerate(tensors)))
    for name, tensor in named:
        hooks = list((tensor._backward_hooks or {}).items())
        yield f"{name} {id(tensor)} {tensor.requires_grad} {_name(hooks)}".encode()
        yield from _tensor(tensor)
        if tensor.is_leaf and tensor.grad is not None:
            yield from _tensor(tensor.grad)
    yield repr(flags()).encode()
    state = rng_state()
    yield repr((state["python"], [_name(part) for part in state["numpy"]])).encode()
    for generator in (state["torch"], *state.get("accelerator", ())):
        yield from _tensor(generator)


def _tensor(tensor: Tensor) -> Iterable[bytes]:
    """Yield a tensor's geometry and content."""
    yield f"{tuple(tensor.shape)} {tensor.dtype} {tensor.device} {tensor.layout}".encode()
    if tensor.is_meta:
        return
    dense = tensor.detach() if tensor.layout is torch.strided else tensor.detach().to_dense()
    yield bits(dense).cpu().contiguous().numpy().tobytes()


def _name(value: Any) -> str:
    """Return what identifies a value: itself if it is plain data, its content by identity for a container."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return repr(value)
    if isinstance(value, np.ndarray):
        return f"{value.shape} {value.dtype} {hashlib.sha256(value.tobytes()).hexdigest()}"
    if isinstance(value, dict):
        return f"{id(value)} {[(key, _name(item)) for key, item in value.items()]}"
    if isinstance(value, list | tuple):
        return f"{type(value)} {[_name(item) for item in value]}"
    return f"{type(value)} {id(value)}"
