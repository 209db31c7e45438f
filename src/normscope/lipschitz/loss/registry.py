"""Rules for losses, by name and by class of module; users register their own with :func:`register_loss`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import nn

from normscope.core.errors import RuleError
from normscope.core.value import Value

F = TypeVar("F", bound=Callable[..., Value])

NAMED: dict[str, Callable[..., Value]] = {}
MODULES: dict[type[nn.Module], Callable[[Any, Case], Value]] = {}


@dataclass(frozen=True)
class Case:
    """What a constant of a loss depends on, besides the loss.

    Attributes:
        outputs: outputs of one sample: classes, or entries of a regression.
        batch: samples, with positions where a loss has one target for each, stacked into one input.
        radius: bound on outputs or errors of a sample, for losses that have a constant on balls only.
        floor: bound from below on probabilities or norms, for losses that need one.
        ignored: whether targets may equal ``ignore_index``.
        soft_targets: whether targets of cross-entropy are probabilities.
    """

    outputs: int
    batch: int = 1
    radius: float | None = None
    floor: float | None = None
    ignored: bool = False
    soft_targets: bool = False


def register_loss(key: str | type[nn.Module]) -> Callable[[F], F]:
    """Register the rule of a loss.

    Args:
        key: a name, whose rule is called as ``rule(outputs, batch=..., ...)`` with the keywords it takes; or a class of
            modules, whose rule is called as ``rule(module, case)`` with a :class:`Case`.

    Raises:
        RuleError: if the key is neither, or has a rule already.

    >>> from normscope.core.value import Kind
    >>> class Absolute(nn.Module): ...
    >>> @register_loss(Absolute)
    ... def absolute(loss, case):
    ...     return Value.of(1.0, Kind.CERTIFIED)
    >>> MODULES.pop(Absolute) is absolute
    True
    """
    if isinstance(key, str):
        table: dict[Any, Any] = NAMED
    elif isinstance(key, type) and issubclass(key, nn.Module):
        table = MODULES
    else:
        raise RuleError(f"a rule is registered for a name or a class of modules, got {key!r}")
    if key in table:
        raise RuleError(f"there is a rule for {key if isinstance(key, str) else key.__name__} already")

    def register(rule: F) -> F:
        table[key] = rule
        return rule

    return register
