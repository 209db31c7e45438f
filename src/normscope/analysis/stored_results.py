"""Results in files: what ``analyze`` wrote, read back."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from typing import Any

from normscope.analysis.checkpoint import CheckpointResult
from normscope.core.conform import nonconforming
from normscope.core.errors import InputError
from normscope.core.paths import expanded, is_file, is_folder
from normscope.core.result import Result

_READERS: dict[str, Callable[[dict[str, Any]], Result | CheckpointResult]] = {
    "capacity": Result.from_dict,
    "weights": CheckpointResult.from_dict,
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
    normscope.core.errors.InputError: a result must be a file; there is no nowhere.json; check the path
    """
    path = expanded(file)
    if not is_file(path):
        what = f"{path} is a directory; name the result.json in it" if is_folder(path) else f"there is no {path}"
        raise InputError(f"a result must be a file; {what}; check the path")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        found = _READERS[data["kind"]](data)
        fault = nonconforming(found, type(found), "result")
        if fault:
            raise ValueError(fault)
        return found
    except _DAMAGED as error:
        known = " or ".join(repr(kind) for kind in _READERS)
        raise InputError(
            f"a result must be the JSON that analyze writes, of kind {known}; {path} is not "
            f"({type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}); write it again"
        ) from error
