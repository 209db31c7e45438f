"""The standard streams of the command line: stdout is for the result alone, and what is printed arrives or is told."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
from collections.abc import Iterator
from typing import TextIO

#: Exit codes: wrong use, and a reader who went away (as of the library behind the command line).
WRONG_USE = 2
UNREAD = 1
#: What writing to a full or failing device raises.
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)
_STDOUT, _STDERR = 1, 2


def visible(text: str, keep: str = "") -> str:
    r"""Return a text with its control characters spelled out: names in a file may hold orders to a terminal.

    Args:
        text: anything.
        keep: characters to leave as they are.

    >>> visible("a\x1b[2J\n"), visible("two\nlines", keep="\n"), visible("\u03c3")
    ('a\\x1b[2J\\n', 'two\nlines', 'σ')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def open_streams() -> None:
    """Give each standard stream a place, and let it take any text.

    One that was closed leads nowhere from now on: its number would go to the next file that is opened, and what is
    printed into that file. A character that the terminal's encoding lacks is spelled out.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # the lowest number that is free: this one
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115 (for as long as the program)
        if hasattr(getattr(sys, name), "reconfigure"):
            getattr(sys, name).reconfigure(errors="backslashreplace")


@contextlib.contextmanager
def aside() -> Iterator[None]:
    """Send what is printed inside the block to stderr, whichever way: the user's code may print, or its children."""
    own = sys.stdout
    with contextlib.redirect_stdout(sys.stderr), contextlib.ExitStack() as stack:
        _flush(own)
        try:
            kept = os.dup(_STDOUT)
        except OSError:  # there is no stdout
            yield
            return
        stack.callback(os.close, kept)
        stack.callback(os.dup2, kept, _STDOUT)
        stack.callback(_flush, own)
        stack.callback(_flush, sys.__stdout__)
        divert()
        yield


def divert() -> None:
    """Send to stderr what is written to stdout from now on: the result has been printed, others may still be at it."""
    whole = [_flush(stream) for stream in (sys.stdout, sys.__stdout__)]  # the library may have wrapped the first
    with contextlib.suppress(OSError):
        # What could not be written for want of a reader would come out there.
        os.dup2(_STDERR if all(whole) else os.open(os.devnull, os.O_WRONLY), _STDOUT)


def _flush(stream: TextIO | None) -> bool:
    """Write out what a stream holds back, and tell whether that was possible."""
    try:
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        return False
    return True


@contextlib.contextmanager
def delivered() -> Iterator[None]:
    """See to it that what was printed arrives: a full disk behind stdout is one line on stderr and exit code 2.

    A reader who went away has seen enough, and gets no line.
    """
    try:
        try:
            yield
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except OSError as error:
        if error.filename is not None or error.errno not in (*_FULL, errno.EPIPE):  # a file of ours has a name
            raise
        if error.errno != errno.EPIPE:
            print(f"normscope: the output could not be written: {error.strerror}; free some space", file=sys.stderr)
        with contextlib.suppress(OSError, ValueError):  # what is left unwritten would fail once more at the exit
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(UNREAD if error.errno == errno.EPIPE else WRONG_USE) from None
