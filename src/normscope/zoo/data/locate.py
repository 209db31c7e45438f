"""Where data sets are looked for."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path

from normscope.core.errors import InputError
from normscope.core.files import user_path

#: Environment variable with the folder of data sets.
VARIABLE = "NORMSCOPE_DATA"


def roots(root: str | Path | None) -> list[Path]:
    """Return the folders to look in: the given one alone, or the usual ones.

    >>> roots("here")
    [PosixPath('here')]
    """
    if root is not None:
        return [user_path(root)]
    named = os.environ.get(VARIABLE)
    usual = [Path("data")]
    with contextlib.suppress(InputError):  # a user without a home
        usual.append(user_path("~/.cache/normscope"))
    return [user_path(named), *usual] if named else usual


def first_files(name: str, folders: Sequence[Path], groups: Sequence[Sequence[str]], how: str) -> list[Path]:
    """Return the files of the first group that is complete, in the first folder that has a complete one."""
    partial: list[str] = []
    for folder in folders:
        for group in groups:
            try:
                absent = [file for file in group if not (folder / file).is_file()]
            except OSError:
                partial.append(f"{folder} cannot be read")
                break
            if not absent:
                return [folder / file for file in group]
            if len(absent) < len(group):
                partial.append(f"{folder} lacks {', '.join(absent)}")
    found = f" Incomplete: {'; '.join(partial)}." if partial else ""
    looked = ", ".join(str(folder) for folder in folders)
    raise InputError(
        f"{name} not found. Looked in {looked}.{found} {how}, then pass its folder (--data-root, "
        f"root=) or set {VARIABLE}."
    )


def checked_split(split: str, among: Sequence[str]) -> str:
    """Return ``split`` if it is one of ``among``.

    >>> checked_split("test", ("train", "test"))
    'test'
    """
    if split not in among:
        raise InputError(f"Expected split to be one of {', '.join(among)}, got {split!r}.")
    return split
