"""The JSON form of results: written field by field, and read back by the types of the fields."""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from enum import Enum
from typing import Any

from normscope.core.value import Value, json_number

SCHEMA_VERSION = 1
#: Keys whose values are plain text, even if the text is "inf".
_TEXT = frozenset({"name", "node", "module", "kind", "note", "method", "reason", "op"})
_INFINITIES = {"inf": math.inf, "-inf": -math.inf}


def to_plain(value: Any) -> Any:
    """Return plain JSON data; NaN becomes ``None``, an unknown number.

    A data class becomes its fields, except those excluded from comparison, and the properties that it names in
    ``_derived``.

    >>> to_plain((1.0, {"a": float("inf"), "b": float("nan")}))
    [1.0, {'a': 'inf', 'b': None}]
    """
    if hasattr(value, "to_dict"):
        return value.to_dict()
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, float):
        return None if math.isnan(value) else json_number(value)
    if isinstance(value, Mapping):
        return {str(k): to_plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [to_plain(v) for v in value]
    return fields_of(value) if dataclasses.is_dataclass(value) else value


def fields_of(value: Any) -> dict[str, Any]:
    """Return the JSON form of the fields of a data class."""
    stored = [f.name for f in dataclasses.fields(value) if f.compare]
    return {name: to_plain(getattr(value, name)) for name in (*stored, *getattr(value, "_derived", ()))}


def from_plain(data: Any) -> Any:
    """Return JSON data of any type with every value a :class:`Value` again, and every infinity a float.

    >>> from_plain({"floor": "inf", "name": "inf", "details": {"low": "-inf"}})
    {'floor': inf, 'name': 'inf', 'details': {'low': -inf}}
    """
    if isinstance(data, list):
        return [from_plain(v) for v in data]
    if not isinstance(data, dict):
        return _INFINITIES.get(data, data) if isinstance(data, str) else data
    if "log10" in data and "domain" in data:
        return Value.from_dict(data)
    return {k: v if k in _TEXT else from_plain(v) for k, v in data.items()}


def read(hint: Any, data: Any, place: str = "result") -> Any:
    """Return JSON data as the type it was written from, also inside data classes and containers.

    Raises:
        ValueError: if it is of another type; the message names the place.

    >>> read(tuple[float, ...], [1.0, "inf"])
    (1.0, inf)
    >>> read(tuple[int, ...], [1, "a"], "shape")
    Traceback (most recent call last):
        ...
    ValueError: shape[1] is str, not int
    """
    if hint is Any:
        return from_plain(data)
    kind: Any = typing.get_origin(hint) or hint
    parts = typing.get_args(hint)
    if kind in (types.UnionType, typing.Union):
        return _read_one_of(parts, data, place)
    if dataclasses.is_dataclass(kind) and isinstance(data, dict):
        return kind.from_dict(data) if hasattr(kind, "from_dict") else read_fields(kind, data, place)
    if issubclass(kind, tuple) and isinstance(data, list):
        return kind(read(parts[0], item, f"{place}[{i}]") for i, item in enumerate(data))
    if issubclass(kind, Mapping) and isinstance(data, dict):
        if parts[1] is Any:
            return from_plain(data)
        return {key: read(parts[1], item, f"{place}[{key!r}]") for key, item in data.items()}
    if issubclass(kind, Enum):
        return kind(data)
    if kind is float and (data is None or data in _INFINITIES):
        return math.nan if data is None else _INFINITIES[data]
    if isinstance(data, (int, float) if kind is float else kind) and (kind is bool or not isinstance(data, bool)):
        return data
    raise ValueError(f"{place} is {type(data).__name__}, not {kind.__name__}")


def _read_one_of(hints: tuple[Any, ...], data: Any, place: str) -> Any:
    """Return JSON data as the first of several types that it conforms to."""
    if data is None and types.NoneType in hints:
        return None
    faults = []
    for hint in hints:
        try:
            return read(hint, data, place)
        except ValueError as fault:
            faults.append(fault)
    raise faults[0]


def read_fields(kind: Any, data: dict[str, Any], place: str) -> Any:
    """Return a data class from its fields; derived ones are left out, and missing ones get their defaults."""
    hints = _hints(kind)
    given = {key: item for key, item in data.items() if not isinstance(getattr(kind, key, None), property)}
    unknown = [key for key in given if key not in hints]
    if unknown:
        raise ValueError(f"{place} has an unknown field {unknown[0]}")
    return kind(**{key: read(hints[key], item, f"{place}.{key}") for key, item in given.items()})


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)
