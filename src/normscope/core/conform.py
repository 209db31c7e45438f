"""Objects read from files, checked against the types their classes declare."""

from __future__ import annotations

import dataclasses
import types
import typing
from enum import Enum
from typing import Any


def nonconforming(value: Any, hint: Any, place: str = "") -> str:
    """Return what of a value is not of its declared type, or an empty text.

    Args:
        value: any object; the fields of data classes, and what is in tuples, lists and dictionaries, are looked at.
        hint: its type.
        place: where it stands.

    >>> nonconforming((1, "a"), tuple[int, ...], "shape"), nonconforming({"a": 1.0}, dict[str, float])
    ('shape[1] is str, not int', '')
    """
    if hint is Any:
        return ""
    origin, parts = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        found = [nonconforming(value, part, place) for part in parts]
        return "" if "" in found else found[0]
    kind: Any = origin or hint
    kind = tuple if issubclass(kind, tuple) else kind  # named rows are one
    wanted: Any = (int, float) if kind is float else kind
    if not isinstance(value, wanted) or (isinstance(value, bool) and kind is not bool):
        return f"{place} is {type(value).__name__}, not {kind.__name__}"
    if dataclasses.is_dataclass(kind) and not isinstance(value, Enum):
        hints = typing.get_type_hints(kind)
        items = [(f"{place}.{f.name}", getattr(value, f.name), hints[f.name]) for f in dataclasses.fields(kind)]
    elif kind in (tuple, list) and parts:
        items = [(f"{place}[{i}]", item, parts[0]) for i, item in enumerate(value)]
    elif kind is dict and parts:
        items = [(f"{place}[{key!r}]", item, parts[1]) for key, item in value.items()]
    else:
        items = []
    return next((text for where, item, of in items if (text := nonconforming(item, of, where))), "")
