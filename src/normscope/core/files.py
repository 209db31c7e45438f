"""Files that are written whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str], *, durable: bool = False) -> Iterator[Path]:
    """Yield an empty file beside a target, which takes its place when the block ends well.

    Where the block fails the target stays as it was, and nothing stays beside it. Folders on the way are made.

    Args:
        path: the target.
        durable: see to it that the content is on the disk before the target is replaced.

    >>> target = Path(tempfile.mkdtemp()) / "a.txt"
    >>> with replacing(target) as temporary:
    ...     _ = temporary.write_text("b", encoding="utf-8")
    >>> target.read_text(encoding="utf-8"), len(list(target.parent.iterdir()))
    ('b', 1)
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        if durable:
            with temporary.open("rb+") as stream:
                os.fsync(stream.fileno())
        temporary.chmod(0o644)  # a temporary file is readable by its owner alone
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_text(path: str | os.PathLike[str], text: str) -> Path:
    """Write a text file, whole or not at all, and return its path.

    >>> folder = Path(tempfile.mkdtemp())
    >>> write_text(folder / "a.txt", "b").read_text(encoding="utf-8")
    'b'
    """
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")
    return Path(path)
