"""One writer of a folder at a time: a lock that ends with the process that holds it."""

from __future__ import annotations

import os
import sys
import weakref
from pathlib import Path
from typing import Any

from normscope.core.errors import InputError

if sys.platform != "win32":
    import fcntl

LOCK = ".lock"


class FolderLock:
    """An advisory lock on a file in a folder; readers do not ask for it.

    The system drops it when the process ends, however that happens, so nothing is left to be cleaned up: the file
    stays, and means nothing without its lock. Where there are no such locks, as on Windows, nothing is locked.

    Args:
        folder: the folder.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as here:
    ...     lock = FolderLock(Path(here))
    ...     lock.acquire()
    ...     lock.release()
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._close: weakref.finalize[Any, Any] | None = None

    def acquire(self) -> None:
        """Take the lock, if it is not ours already.

        Raises:
            InputError: if someone else has it.
            OSError: if the folder cannot be written.
        """
        if sys.platform == "win32" or self._close is not None:
            return
        file = os.open(self.folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):  # the second where locks are kept by a server
            os.close(file)
            raise InputError(f"Another monitor is writing to {self.folder}. Close it, or use another folder.") from None
        except OSError:  # a file system without locks
            os.close(file)
            return
        self._close = weakref.finalize(self, os.close, file)
        _HELD.add(self)

    def release(self) -> None:
        """Give the lock back, if it is ours."""
        if self._close is not None:
            self._close()
            self._close = None


_HELD: weakref.WeakSet[FolderLock] = weakref.WeakSet()


def _forget() -> None:
    """Close the files in a forked process, such as a loader of data: it would hold the lock after its parent's end."""
    for lock in _HELD:
        lock.release()


if sys.platform != "win32":
    os.register_at_fork(after_in_child=_forget)
