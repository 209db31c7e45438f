"""Files that are written atomically: whole or not at all."""

import contextlib
import errno
import json
import os
import secrets
import stat
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any, ClassVar, Self, cast

from normscope.core.errors import InputError
from normscope.core.json_form import SCHEMA_VERSION, fields_of, read_fields


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield an empty file beside a target, which it replaces when the block succeeds.

    If the block fails, the target stays as it was and the new file is removed. Missing parent folders are created. A
    link stays a link: the file it leads to is replaced. A new file gets the default permissions, an existing one keeps
    its own.

    Raises:
        OSError: if nothing can be written there, or the target is not a regular file but, say, a folder or a device.

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

    File names may contain bytes that are not text; they are written as escapes, as in JSON.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_text(folder / "a.txt", "b").read_text(encoding="utf-8")
    'b'
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace")
    return Path(path)


class Saved:
    """A data class with a JSON form: its kind, and its fields."""

    #: What kind of result it is in its JSON form.
    _kind: ClassVar[str]

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {"schema_version": SCHEMA_VERSION, "kind": self._kind, **fields_of(self)}

    def to_json(self) -> str:
        """Return the JSON text (strict: no NaN, infinities as strings)."""
        return json.dumps(self.to_dict(), indent=1, allow_nan=False)

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the JSON text, whole or not at all."""
        return write_text(path, self.to_json() + "\n")


class Stored(Saved):
    """A data class that is read back from its JSON form.

    >>> import dataclasses
    >>> @dataclasses.dataclass
    ... class One(Stored):
    ...     _kind = "example"
    ...     one: int
    >>> One(1).to_dict(), One.from_dict(One(1).to_dict())
    ({'schema_version': 1, 'kind': 'example', 'one': 1}, One(one=1))
    """

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Self:
        """Read the JSON form back.

        Raises:
            ValueError: if it is of another kind or schema version, or was changed.
        """
        version, kind = data.get("schema_version"), data.get("kind")
        if kind != cls._kind:
            raise ValueError(f"Expected a result of kind {cls._kind!r}, got {kind!r}.")
        if version != SCHEMA_VERSION:
            raise ValueError(f"Expected schema version {SCHEMA_VERSION}, got {version!r}.")
        known: Any = fields(cls)  # type: ignore[arg-type]
        return cast(Self, read_fields(cls, {f.name: data[f.name] for f in known if f.name in data}, "result"))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file that :meth:`save` wrote.

        Raises:
            OSError: if it cannot be read.
            ValueError: if it is not JSON, or not a result of this kind.
        """
        try:
            data = json.loads(user_path(path).read_text(encoding="utf-8"))
        except ValueError as error:
            raise ValueError(f"{path} is not a result: {error}.") from error
        return cls.from_dict(data if isinstance(data, dict) else {})


def user_path(path: str | os.PathLike[str]) -> Path:
    """Return a path with ``~`` and ``~name`` replaced by home folders.

    >>> user_path("a/b").parts
    ('a', 'b')
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"No home folder found for {os.fspath(path)}.") from None
