"""What the schema of an operation says: what it writes to, and what its shape depends on."""

import functools
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

#: Operations whose shape depends on numbers although torch does not mark them so.
_MOVING = ("aten.where.default", "aten.nonzero_numpy.default")


def arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Iterator[tuple[Any, Any]]:
    """Yield every argument given to an operation together with its place in the schema.

    >>> [(a.name, value) for a, value in arguments(torch.ops.aten.add.Tensor, (1, 2), {"alpha": 3})]
    [('self', 1), ('other', 2), ('alpha', 3)]
    """
    for position, argument in enumerate(func._schema.arguments):
        if position < len(args):
            yield argument, args[position]
        elif argument.name in kwargs:
            yield argument, kwargs[argument.name]


def written_arguments(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the tensors an operation declares to write to, in the order of its schema.

    >>> x = torch.zeros(1)
    >>> written_arguments(torch.ops.aten.add_.Tensor, (x, 1), {})[0] is x
    True
    """
    if not func._schema.is_mutable:
        return []
    found: list[Tensor] = []
    for argument, value in arguments(func, args, kwargs):
        if argument.alias_info is not None and argument.alias_info.is_write:
            items = value if isinstance(value, list | tuple) else [value]
            found.extend(item for item in items if isinstance(item, Tensor))
    return found


def normalizer_in_training(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[Tensor]:
    """Return the running statistics that a normalizer in training mode updates without declaring it.

    >>> x, m = torch.zeros(2, 1), torch.zeros(1)
    >>> batch_norm = torch.ops.aten.batch_norm.default
    >>> len(normalizer_in_training(batch_norm, (x, None, None, m, m, True, 0.1, 1e-5, False), {}))
    2
    >>> len(normalizer_in_training(batch_norm, (x, None, None, m, m, False, 0.1, 1e-5, False), {}))
    0
    """
    if "batch_norm" not in str(func) and "instance_norm" not in str(func):
        return []
    given = {argument.name: value for argument, value in arguments(func, args, kwargs)}
    if not any(given.get(flag) for flag in ("training", "train", "use_input_stats")):
        return []
    statistics = (given.get("running_mean"), given.get("running_var"))
    return [tensor for tensor in statistics if isinstance(tensor, Tensor)]


def moves_shape(function: Any, given: Sequence[Any]) -> bool:
    """Return whether the shape of a result depends on the numbers in these tensors, not on their shapes alone.

    >>> moves_shape(torch.ops.aten.nonzero.default, [torch.ones(2)])
    True
    >>> moves_shape(torch.ops.aten.index.Tensor, [torch.ones(2), torch.tensor([0])])
    False
    """
    if str(function) in _MOVING:
        return True
    if torch.Tag.dynamic_output_shape not in getattr(function, "tags", ()):
        return False
    masks = any(isinstance(t, Tensor) and t.dtype in (torch.bool, torch.uint8) for t in given)
    return masks or "index" not in str(function)


@functools.cache
def whole_arguments(function: Any) -> frozenset[str]:
    """Return the names of the arguments of an operation that are whole numbers or flags: sizes, places, axes.

    The ends of a range determine its size, whatever numbers they are.

    >>> sorted(whole_arguments(torch.ops.aten.new_ones.default))
    ['pin_memory', 'size']
    """
    given = getattr(function, "_schema", None)
    arguments = () if given is None else given.arguments
    kinds = r"\b(int|SymInt|bool|number)\b" if "arange" in str(function) else r"\b(int|SymInt|bool)\b"
    return frozenset(a.name for a in arguments if re.search(kinds, str(a.real_type)))
