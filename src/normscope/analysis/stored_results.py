"""Read results that were saved as JSON."""

import json
import os
from collections.abc import Mapping
from typing import TypeAlias, TypeVar

from normscope.analysis.bounds.result import BoundsResult
from normscope.analysis.checkpoint import CheckpointResult
from normscope.core.errors import InputError
from normscope.core.files import Stored, user_path
from normscope.core.result import Result
from normscope.curvature.result import CurvatureResult
from normscope.geometry.discover import Symmetries
from normscope.weight_normalization.guarantees import Guarantees

T = TypeVar("T", bound=Stored)
#: Results that the report shows beside a capacity result.
PanelResult: TypeAlias = CurvatureResult | BoundsResult | Guarantees | Symmetries

_RESULTS: dict[str, type[Result | CheckpointResult]] = {r._kind: r for r in (Result, CheckpointResult)}
_PANELS: dict[str, type[PanelResult]] = {r._kind: r for r in (CurvatureResult, BoundsResult, Guarantees, Symmetries)}

#: What makes results of the panels.
PANELS = "curvature, bounds, symmetry or weight_normalization.verify"
#: Errors raised by files that are damaged, or hold something else.
_DAMAGED = (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError, OverflowError, RecursionError)


def read_result(file: str | os.PathLike[str], makers: str = "`normscope analyze`") -> Result | CheckpointResult:
    """Return the result in a file.

    Args:
        file: a ``result.json`` of ``analyze``, of a model or of a checkpoint.
        makers: the commands whose results are accepted there, for the message about any other file.

    Returns:
        The result.

    Raises:
        InputError: if the file is not there, or holds something else.

    >>> read_result("nowhere.json")
    Traceback (most recent call last):
        ...
    normscope.core.errors.InputError: File not found: nowhere.json. Check the path.
    """
    return _read(file, _RESULTS, makers)


def read_panel(file: str | os.PathLike[str]) -> PanelResult:
    """Return what ``curvature``, ``bounds``, ``symmetry`` or ``weight_normalization.verify`` wrote.

    Args:
        file: a ``curvature.json``, ``bounds.json``, ``symmetry.json`` or ``weight_normalization.json``.

    Raises:
        InputError: if the file is not there, or holds something else.
    """
    return _read(file, _PANELS, f"normscope {PANELS}")


def is_panel(file: str | os.PathLike[str]) -> bool:
    """Return whether a file is one for :func:`read_panel`.

    >>> is_panel("nowhere.json")
    False
    """
    try:
        return json.loads(user_path(file).read_text(encoding="utf-8"))["kind"] in _PANELS
    except _DAMAGED:
        return False


def _read(file: str | os.PathLike[str], kinds: Mapping[str, type[T]], maker: str) -> T:
    """Return the result in a file that some command made; its kind says which class it has."""
    path = user_path(file)
    if not path.is_file():
        if (path / "metrics.jsonl").is_file():
            raise InputError(f"{path} is a training run: use `normscope watch`.")
        if path.is_dir():
            raise InputError(f"Expected a result.json, but {path} is a directory. Name the file in it.")
        raise InputError(f"File not found: {path}. Check the path.")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        kind = kinds[data["kind"]]
    except OSError as error:
        raise InputError(f"Cannot read {path}: {error.strerror}.") from error
    except _DAMAGED as error:
        raise InputError(f"{path} is not a result of {maker}.") from error
    try:
        return kind.from_dict(data)
    except _DAMAGED as error:
        first = str(error).splitlines()[0] if str(error) else ""
        raise InputError(
            f"The result in {path} cannot be read ({type(error).__name__}: {first}). Write it again."
        ) from error
