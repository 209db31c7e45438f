"""Results in files: what ``analyze`` wrote, read back."""

import dataclasses
import json
import os
import types
import typing
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, TypeAlias, TypeVar

from normscope.analysis.bounds.result import BoundsResult
from normscope.analysis.checkpoint import CheckpointResult
from normscope.core.errors import InputError
from normscope.core.files import user_path
from normscope.core.result import Result
from normscope.curvature.result import CurvatureResult
from normscope.geometry.discover import Symmetries
from normscope.weight_normalization.guarantees import Guarantees

Stored = TypeVar("Stored")
#: What the report shows beside a capacity result.
Beside: TypeAlias = CurvatureResult | BoundsResult | Guarantees | Symmetries

_READERS: dict[str, Callable[[dict[str, Any]], Result | CheckpointResult]] = {
    "capacity": Result.from_dict,
    "weights": CheckpointResult.from_dict,
}
_BESIDE: dict[str, Callable[[dict[str, Any]], Beside]] = {
    "curvature": CurvatureResult.from_dict,
    "bounds": BoundsResult.from_dict,
    "weight-normalization": Guarantees.from_dict,
    "symmetry": Symmetries.from_dict,
}

#: What reading a file that was written otherwise, cut, or changed by hand can raise.
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)


def read_result(file: str | os.PathLike[str]) -> Result | CheckpointResult:
    """Return the result in a file.

    Args:
        file: a ``result.json`` of ``analyze``, of a model or of a checkpoint.

    Returns:
        The result.

    Raises:
        InputError: if the file is not there, or holds something else.

    >>> read_result("nowhere.json")
    Traceback (most recent call last):
        ...
    normscope.core.errors.InputError: File not found: nowhere.json. Check the path.
    """
    return _read(file, _READERS)


def read_beside(file: str | os.PathLike[str]) -> Beside:
    """Return what ``curvature``, ``bounds``, ``symmetry`` or ``weight_normalization.verify`` wrote.

    Args:
        file: a ``curvature.json``, ``bounds.json``, ``symmetry.json`` or ``weight_normalization.json``.

    Raises:
        InputError: if the file is not there, or holds something else.
    """
    return _read(file, _BESIDE)


def is_beside(file: str | os.PathLike[str]) -> bool:
    """Return whether a file is one for :func:`read_beside`.

    >>> is_beside("nowhere.json")
    False
    """
    try:
        return json.loads(user_path(file).read_text(encoding="utf-8"))["kind"] in _BESIDE
    except _DAMAGED:
        return False


def _read(file: str | os.PathLike[str], readers: Mapping[str, Callable[[dict[str, Any]], Stored]]) -> Stored:
    """Return what a file holds, by the reader of its kind."""
    path = user_path(file)
    if not path.is_file():
        if path.is_dir():
            raise InputError(f"Expected a result.json, but {path} is a directory. Name the file in it.")
        raise InputError(f"File not found: {path}. Check the path.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found = readers[data["kind"]](data)
        fault = nonconforming(found, type(found), "result")
        if fault:
            raise ValueError(fault)
        return found
    except _DAMAGED as error:
        known = " or ".join(repr(kind) for kind in readers)
        raise InputError(
            f"Expected the JSON written by analyze, of kind {known}; {path} is not ({type(error).__name__}: "
            f"{str(error).splitlines()[0] if str(error) else ''}). Write it again."
        ) from error


def nonconforming(value: Any, hint: Any, place: str = "") -> str:
    """Return what of a value, also inside of data classes and containers, is not of its declared type.

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
