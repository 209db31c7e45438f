"""Files that verbs write: checked before any work is done, written whole or not at all."""

import contextlib
import itertools
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from typer import BadParameter

from normscope.core.files import Saved, user_path, write_text

#: Where every run gets a folder of its own.
RUNS = Path("normscope-runs")


@contextlib.contextmanager
def writing(target: Path, option: str = "--out") -> Iterator[None]:
    """Turn an error in writing a file, such as a full disk or missing permissions, into a message about its option."""
    try:
        yield
    except OSError as error:
        raise BadParameter(f"Cannot write {target}: {error.strerror or error}.", param_hint=option) from error


def save(result: Saved, target: Path, option: str = "--out") -> Path:
    """Write a result to a file that an option named, whole or not at all, and return its path."""
    with writing(target, option):
        return result.save(target)


def write_file(target: Path, text: str, option: str = "--out") -> Path:
    """Write a text file that an option named, whole or not at all, and return its path."""
    with writing(target, option):
        return write_text(target, text)


def new_folder(name: str) -> Path:
    """Return a folder for a run that does not exist yet; it is not created.

    >>> new_folder("zoo:a net[width=3]").as_posix()
    'normscope-runs/a-net-1'
    """
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name.partition("[")[0].rpartition(":")[2]).strip("-.") or "run"
    taken = {place.name for place in RUNS.iterdir()} if RUNS.is_dir() else set()
    number = next(n for n in itertools.count(1) if f"{stem}-{n}" not in taken)
    return RUNS / f"{stem}-{number}"


def checked_folder(folder: Path, option: str = "--out") -> Path:
    """Return a folder results can be written to, or raise before any work is done; it is not created yet."""
    place = nearest = user_path(folder)
    while not nearest.exists() and nearest != nearest.parent:
        nearest = nearest.parent
    if not nearest.is_dir():
        raise BadParameter(f"Expected a folder, but {nearest} is a file.", param_hint=option)
    try:
        tempfile.TemporaryFile(dir=nearest).close()  # permissions do not tell: root may write everywhere but in /proc
    except OSError as error:
        raise BadParameter(f"Folder is not writable: {nearest}.", param_hint=option) from error
    return place


def checked_file(file: Path, option: str = "--out") -> Path:
    """Return a file that can be written, or raise before any work is done; nothing is created yet.

    A file that already exists will be replaced, and a line on stderr says so.
    """
    place = user_path(file)
    if place.exists() and not place.is_file():
        what = "a folder" if place.is_dir() else "a device, a pipe or a socket"
        raise BadParameter(f"Expected a file, but {place} is {what}.", param_hint=option)
    found = checked_folder(place.parent, option) / place.name
    if found.exists():
        print(f"normscope: replacing {found}", file=sys.stderr)
    return found


def checked_apart(file: Path | None, other: Path | None, option: str) -> None:
    """Raise if two files to be written are the same; the option names the first."""
    if file is not None and other is not None and os.path.realpath(file) == os.path.realpath(other):
        raise BadParameter(
            f"Two results would be written to the same file: {file}. Choose different paths.", param_hint=option
        )
