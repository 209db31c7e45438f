"""Questions about places a user names, answered without surprises.

A text from outside may be no path at all: too long for a name, with a NUL byte, or in a folder that may not be entered.
The first two name nothing; the last is said.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from normscope.core.errors import InputError

#: What the system says of a place that cannot be there.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG, errno.ELOOP, errno.EINVAL, errno.EBADF)


def expanded(path: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` replaced by a home folder.

    Args:
        path: what the user wrote.

    Returns:
        The path; it need not exist.

    Raises:
        InputError: if there is no such user, or none whose home is known.

    >>> expanded("nets/small.py").as_posix()
    'nets/small.py'
    >>> expanded("~no such user/net.py")
    Traceback (most recent call last):
        ...
    normscope.core.errors.InputError: ~ stands for a home folder; there is none for '~no such user'; write the path out
    """
    place = Path(path)
    try:
        return place.expanduser()
    except (RuntimeError, ValueError):  # an unknown user, and a NUL byte in the name of one
        raise InputError(f"No home folder for {place.parts[0]!r}; write the path out.") from None


def resolved(path: str | os.PathLike[str]) -> Path:
    """Return the absolute path without links of what :func:`expanded` returns.

    Args:
        path: what the user wrote.

    Returns:
        The path; it need not exist.

    Raises:
        InputError: if there is no such user, a link leads to itself, or the working directory was deleted.

    >>> resolved("nets/../small.py") == Path.cwd().resolve() / "small.py"
    True
    """
    place = expanded(path)
    try:
        return place.resolve()
    except (RuntimeError, ValueError):  # RuntimeError: a loop, before Python 3.13
        raise InputError(f"Invalid path: {str(place)!r}.") from None
    except OSError as error:
        raise _unreachable(place, error) from None


def working_folder() -> Path | None:
    """Return the working directory, or ``None`` if it was deleted or may not be seen.

    >>> working_folder() == Path.cwd()
    True
    """
    try:
        return Path.cwd()
    except OSError:
        return None


def exists(path: str | os.PathLike[str]) -> bool:
    """Tell whether there is anything at a path.

    Raises:
        InputError: if that cannot be seen, because a folder on the way may not be entered.

    >>> exists("."), exists("a" * 9999), exists("a" + chr(0))
    (True, False, False)
    """
    return _mode(path) is not None


def is_file(path: str | os.PathLike[str]) -> bool:
    """Tell whether there is a regular file at a path, or a link to one.

    Raises:
        InputError: if that cannot be seen, because a folder on the way may not be entered.

    >>> is_file(__file__), is_file("."), is_file("a" * 9999)
    (True, False, False)
    """
    mode = _mode(path)
    return mode is not None and stat.S_ISREG(mode)


def is_folder(path: str | os.PathLike[str]) -> bool:
    """Tell whether there is a folder at a path, or a link to one.

    Raises:
        InputError: if that cannot be seen, because a folder on the way may not be entered.

    >>> is_folder("."), is_folder(__file__), is_folder("a" * 9999)
    (True, False, False)
    """
    mode = _mode(path)
    return mode is not None and stat.S_ISDIR(mode)


def entries(folder: str | os.PathLike[str]) -> list[Path]:
    """Return what is in a folder, sorted.

    Args:
        folder: an existing folder.

    Returns:
        The paths, each beginning with ``folder``.

    Raises:
        InputError: if there is no such folder, or it may not be read.

    >>> "paths.py" in [path.name for path in entries(Path(__file__).parent)]
    True
    """
    if not is_folder(folder):
        raise InputError(f"Folder not found: {str(folder)!r}.")
    try:
        return sorted(Path(folder).iterdir())
    except OSError as error:
        raise _unreachable(folder, error) from None


def _mode(path: str | os.PathLike[str]) -> int | None:
    """Return the mode of what is at a path, links followed, or ``None`` if nothing is."""
    try:
        return os.stat(path).st_mode
    except ValueError:  # a NUL byte, or characters that no file name here can have
        return None
    except OSError as error:
        if error.errno in _ABSENT:
            return None
        raise _unreachable(path, error) from None


def _unreachable(path: str | os.PathLike[str], error: OSError) -> InputError:
    """Return the error that says why a path cannot be looked at."""
    return InputError(
        f"a path must be readable; {path} is not: {error.strerror or error}; name another, or ask for access"
    )
