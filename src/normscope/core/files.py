"""Files that are written atomically: whole or not at all."""

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from normscope.core.errors import InputError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty file beside a target, which takes its place when the block ends well.

    Where the block fails the target stays as it was, and nothing stays beside it. Folders on the way are made. A link
    stays a link: what it leads to is replaced. A new file has the rights that any new file has here, an old one keeps
    its own.

    Raises:
        OSError: if nothing can be written there, or there is something that is not a regular file: a folder, a device.

    >>> import tempfile
    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("b", encoding="utf-8")
    >>> target.read_text(encoding="utf-8"), len(list(target.parent.iterdir()))
    ('b', 1)
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():  # replacing a device would destroy it
        kind = IsADirectoryError if target.is_dir() else FileExistsError
        raise kind(errno.EEXIST, "Not a regular file", str(path))
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name[:40]}.{secrets.token_hex(8)}.tmp")
    temporary.touch()  # with the rights that the umask leaves, unlike the files of tempfile
    rights = stat.S_IMODE((target if target.exists() else temporary).stat().st_mode)
    try:
        yield temporary
        temporary.chmod(rights)  # whoever wrote it may have put a file of their own in its place
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file, whole or not at all, and return its path.

    Names of files may hold bytes that are no text; they are written as escapes, as in JSON.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_text(folder / "a.txt", "b").read_text(encoding="utf-8")
    'b'
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    return Path(path)


class Saved:
    r"""A result with a JSON form, which its ``to_dict`` gives.

    >>> class One(Saved):
    ...     def to_dict(self):
    ...         return {"one": 1}
    >>> One().to_json()
    '{\n "one": 1\n}'
    """

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        raise NotImplementedError

    def to_json(self) -> str:
        """Return the JSON text (strict: no NaN, infinities as strings)."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON text, whole or not at all."""
        return write_text(path, self.to_json() + "\n")


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` and ``~name`` replaced by home folders.

    >>> user_path("a/b").parts
    ('a', 'b')
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"No home folder found for {os.fspath(path)}.") from None
