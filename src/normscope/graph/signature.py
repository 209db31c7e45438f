"""What a model's forward takes, and which of its layers sees the input first."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as module_hooks

from normscope.graph.wrappers import unwrap

#: Layers whose attributes give the size of their input.
SIZED_LAYERS = (
    nn.Embedding,
    nn.EmbeddingBag,
    nn.Linear,
    nn.modules.conv._ConvNd,
    nn.RNNBase,
    nn.MultiheadAttention,
    nn.LayerNorm,
    nn.RMSNorm,
    nn.GroupNorm,
    nn.modules.batchnorm._BatchNorm,
)


@dataclass(frozen=True)
class Signature:
    """The arguments of a forward.

    Attributes:
        required: names of the positional parameters without default.
        named: names of the parameters without default that can only be given by name.
        keywords: names that may be given as keywords.
        any_positional: whether there is ``*args``.
        any_keyword: whether there is ``**kwargs``.
    """

    required: tuple[str, ...]
    named: tuple[str, ...]
    keywords: tuple[str, ...]
    any_positional: bool
    any_keyword: bool


def signature_of(model: nn.Module) -> Signature:
    """Return the signature of a model's forward; if it is unreadable, any arguments are allowed.

    >>> signature_of(nn.Linear(2, 2)).required
    ('input',)
    """
    try:
        parameters = list(inspect.signature(unwrap(model)[0].forward).parameters.values())
    except (TypeError, ValueError):
        return Signature((), (), (), True, True)
    kinds = inspect.Parameter
    positional = [p for p in parameters if p.kind in (kinds.POSITIONAL_ONLY, kinds.POSITIONAL_OR_KEYWORD)]
    return Signature(
        required=tuple(p.name for p in positional if p.default is kinds.empty),
        named=tuple(p.name for p in parameters if p.kind is kinds.KEYWORD_ONLY and p.default is kinds.empty),
        keywords=tuple(p.name for p in parameters if p.kind in (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)),
        any_positional=any(p.kind is kinds.VAR_POSITIONAL for p in parameters),
        any_keyword=any(p.kind is kinds.VAR_KEYWORD for p in parameters),
    )


def sized_layers(model: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield the layers that give the size of their input, in the order in which they were defined.

    >>> [name for name, _ in sized_layers(nn.Sequential(nn.Flatten(), nn.Linear(4, 2)))]
    ['1']
    """
    for path, module in model.named_modules():
        if isinstance(module, SIZED_LAYERS):
            yield path, module


def input_dtype(model: nn.Module, otherwise: torch.dtype | None = None) -> torch.dtype:
    """Return the dtype of the numbers a model takes: that of its first floating parameter, or else buffer.

    A model without such tensors accepts any dtype: then ``otherwise``, or torch's default.

    >>> input_dtype(nn.Linear(2, 2).double())
    torch.float64
    """
    held = (*model.parameters(), *model.buffers())
    floating = (t.dtype for t in held if t.is_floating_point() and t.dtype.itemsize > 1)
    return next(floating, otherwise or torch.get_default_dtype())


def input_device(model: nn.Module) -> torch.device:
    """Return the device of a model's first parameter or buffer."""
    held = (*model.parameters(), *model.buffers())
    return held[0].device if held else torch.device("cpu")


class InnermostModule:
    """Context that remembers, if the block raises, in which module it happened and on what shapes.

    >>> model = nn.Sequential(nn.ReLU(), nn.Linear(3, 2))
    >>> where = InnermostModule(model)
    >>> try:
    ...     with where:
    ...         _ = model(torch.zeros(1, 4))
    ... except RuntimeError:
    ...     print(where.text)
    layer 1, Linear(in_features=3, out_features=2, bias=True), got (1, 4)
    """

    def __init__(self, model: nn.Module) -> None:
        self.text = self.path = ""
        self._paths = {id(module): path for path, module in model.named_modules()}
        self._stack: list[tuple[nn.Module, Any]] = []

    def __enter__(self) -> InnermostModule:
        self._hooks = [
            module_hooks.register_module_forward_pre_hook(lambda module, args: self._stack.append((module, args))),
            module_hooks.register_module_forward_hook(lambda module, args, result: self._stack.pop() and None),
        ]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()
        if error is not None and self._stack:
            module, args = self._stack[-1]
            path = self.path = self._paths.get(id(module), "")
            layer = repr(module) if not list(module.children()) else type(module).__name__
            shapes = ", ".join(str(tuple(a.shape)) for a in args if isinstance(a, torch.Tensor))
            self.text = f"layer {path}, {layer}, got {shapes}" if path else ""
