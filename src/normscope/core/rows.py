"""Rows of a table that are found by position or by name."""

from __future__ import annotations

import difflib
from typing import Any, Protocol, SupportsIndex, TypeVar, overload


class Row(Protocol):
    """Anything with a name."""

    @property
    def name(self) -> str:
        """Return the name."""


R = TypeVar("R", bound=Row)


class Rows(tuple[R, ...]):
    """A tuple of named rows: ``rows[0]``, ``rows[1:3]`` and ``rows["conv1"]``.

    >>> from pathlib import Path
    >>> Rows((Path("a/conv1"), Path("fc")))["conv1"]
    PosixPath('a/conv1')
    """

    @overload
    def __getitem__(self, key: SupportsIndex) -> R: ...
    @overload
    def __getitem__(self, key: slice) -> tuple[R, ...]: ...
    @overload
    def __getitem__(self, key: str) -> R: ...
    def __getitem__(self, key: Any) -> Any:
        """Return a row by position or by name.

        Raises:
            KeyError: if no row has the name, with the nearest ones.
        """
        if not isinstance(key, str):
            return super().__getitem__(key)
        for row in self:
            if row.name == key:
                return row
        near = difflib.get_close_matches(key, [row.name for row in self], n=3)
        raise KeyError(f"No row named {key!r}." + (f" Did you mean {' or '.join(near)}?" if near else ""))
