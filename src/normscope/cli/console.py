"""Output of the command line: progress on stderr, reports on stdout, and one line for an error."""

from __future__ import annotations

import contextlib
import errno
import functools
import gc
import json as json_module
import os
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, TypeVar

from normscope.core.errors import NormscopeError

if TYPE_CHECKING:
    from normscope.report.table import Section, Table

F = TypeVar("F", bound=Callable[..., Any])

#: Exit codes of wrong use, and of work stopped by the user (128 + SIGINT).
WRONG_USE, STOPPED = 2, 130
#: The first step of every verb: it imports torch and what it needs of the library.
LOADING = "loading torch"
#: Seconds after which progress is shown.
PATIENCE = 2.0
#: Seconds between lines that say how far a step is, where there is no terminal.
OFTEN = 15.0
#: Seconds after which a note is printed, unless the result, which contains it too, comes first.
NOTED = 10.0
_TICK = 0.2
#: Length up to which a name in a table is not wrapped.
NAME = 40
#: Errors of a path that the user named wrongly, or may not use.
_UNREACHABLE = (errno.EACCES, errno.EPERM, errno.ENAMETOOLONG, errno.ELOOP, errno.EROFS)
#: Control characters that a message of several lines may contain.
_BREAKS = "\n\t"


def is_terminal(stream: TextIO) -> bool:
    """Return whether a stream is a terminal that may get colour and boxes (NO_COLOR and TERM=dumb say it may not)."""
    plain = os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb"
    return not plain and getattr(stream, "isatty", lambda: False)()


def line_width(most: int = 118) -> int:
    """Return the largest width of lines on stdout: that of its terminal, if it is one, but at most ``most``.

    >>> line_width(60) <= 60
    True
    """
    return min(most, shutil.get_terminal_size().columns) if is_terminal(sys.stdout) else most


def visible(text: str, keep: str = "") -> str:
    r"""Return a text with its control characters spelled out: names in a file may contain terminal commands.

    >>> visible("a\x1b[2J\n"), visible("two\nlines", keep="\n"), visible("\u03c3")
    ('a\\x1b[2J\\n', 'two\nlines', 'σ')
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)


def guarded(function: F) -> F:
    """Turn errors a user can cause into one line on stderr and exit code 2, and Ctrl-C into exit code 130."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        try:
            return function(*args, **kwargs)
        except NormscopeError as error:
            _print_error(str(error))
            raise SystemExit(WRONG_USE) from None
        except OSError as error:
            if error.filename is None or error.errno not in _UNREACHABLE:
                raise
            _print_error(
                f"Cannot access {error.filename}: {error.strerror}. Use another path, or check its permissions."
            )
            raise SystemExit(WRONG_USE) from None
        except (MemoryError, RuntimeError) as error:
            if not _is_memory(error):
                raise
            first = (str(error).splitlines() or ["no memory left"])[0]
            _print_error(f"Out of memory: {first}. Use a smaller --input, --limit or model.")
            raise SystemExit(WRONG_USE) from None
        except KeyboardInterrupt:
            _print_error("stopped")
            raise SystemExit(STOPPED) from None

    return wrapper  # type: ignore[return-value]


def _print_error(text: str) -> None:
    """Print a line on stderr, wrapped if that is a terminal."""
    lines = f"normscope: {visible(text, keep=_BREAKS)}".split("\n")
    if is_terminal(sys.stderr):
        width = shutil.get_terminal_size().columns
        lines = [piece for line in lines for piece in textwrap.wrap(line, width, break_long_words=False) or [""]]
    print("\n".join(lines), file=sys.stderr)


def _is_memory(error: Exception) -> bool:
    """Return whether an exception is about memory: torch has a class of its own only for accelerators.

    >>> _is_memory(RuntimeError("DefaultCPUAllocator: can't allocate memory")), _is_memory(RuntimeError("no"))
    (True, False)
    """
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return "allocate memory" in str(error) or "not enough memory" in str(error)


class Stages:
    """Progress of long work, on stderr. Use as a context manager; call it with a line of text at each step.

    On a terminal it shows, after two seconds, a line with the current step and the time; elsewhere, a plain line for
    each step that takes more than two seconds, and another every 15 seconds that says how far it is. Steps are
    distinguished by their text before a colon and a space. What is printed inside the block, by the user's code for
    example, goes to stderr: stdout is for the result.

    Args:
        quiet: show nothing.
        lines: allow plain lines where there is no terminal.
    """

    def __init__(self, *, quiet: bool = False, lines: bool = True) -> None:
        self._live = not quiet and is_terminal(sys.stderr)
        self._lines = not quiet and not self._live and lines
        self._text, self._announced = LOADING, ""
        self._began = self._repeated = time.monotonic()
        self._stop = threading.Event()
        self._notes: list[tuple[float, str]] = []
        self._above: tuple[str, ...] = ()

    def above(self, lines: Sequence[str]) -> None:
        """Show lines above the progress, until the result takes their place; where there is no terminal, print them."""
        lines = tuple(visible(line) for line in lines)
        if self._lines:
            print("\n".join(("normscope: first look:", *(f"  {line}" for line in lines))), file=sys.stderr, flush=True)
        self._above = lines

    def __call__(self, text: str) -> None:
        """Show what is being done now."""
        text = visible(text)
        if _step(text) != _step(self._text):
            self._began = time.monotonic()
            if not gc.isenabled():  # the imports of the command line are over, and what they made stays
                gc.freeze()
                gc.enable()
        self._text = text

    def about(self, name: str) -> Callable[[str], None]:
        """Return a function that shows what is being done now, and for which of several models."""
        return lambda text: self(f"{name}, {text}")

    def note(self, text: str) -> None:
        """Print a line that stays, if the work continues for long after it; for quick work nothing is shown."""
        self._notes.append((time.monotonic(), visible(text)))

    def __enter__(self) -> Stages:
        with contextlib.ExitStack() as stack:
            stack.enter_context(contextlib.redirect_stdout(sys.stderr))
            if self._live or self._lines:
                thread = threading.Thread(target=self._watch, daemon=True)
                thread.start()
                stack.callback(thread.join)
                stack.callback(self._stop.set)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    def _watch(self) -> None:
        """Wait while the work runs, and report when it takes long."""
        begun = time.monotonic()
        spinner: Any = None
        while not self._stop.wait(_TICK):
            now = time.monotonic()
            if self._live and spinner is None and now - begun > PATIENCE:
                spinner = self._spinner(begun)
                spinner.start()
            while self._notes and now - self._notes[0][0] > NOTED:
                print(self._notes.pop(0)[1], file=sys.stderr, flush=True)
            text, step = self._text, _step(self._text)
            if not self._lines or now - self._began <= PATIENCE:
                continue
            if step != self._announced:
                print(f"normscope: {step} ...", file=sys.stderr, flush=True)
                self._announced, self._repeated = step, now
            elif text != step and now - self._repeated > OFTEN:
                print(f"normscope: {text} ...", file=sys.stderr, flush=True)
                self._repeated = now
        if spinner is not None:
            spinner.stop()

    def _spinner(self, begun: float) -> Any:
        """Return a display of the step and the time on stderr, below the lines that are shown above."""
        from rich.console import Console, Group
        from rich.live import Live
        from rich.spinner import Spinner
        from rich.text import Text

        spinner = Spinner("dots")

        def view() -> Group:
            elapsed = timedelta(seconds=int(time.monotonic() - begun))
            spinner.update(text=Text(f"{elapsed} {self._text}"))
            return Group(*(Text(line) for line in self._above), spinner)

        return Live(get_renderable=view, console=Console(stderr=True), transient=True)


def _step(text: str) -> str:
    """Return the part of a progress line that names the step; a model's name may contain a colon, too.

    >>> _step("net.py:build, training: step 3 of 9")
    'net.py:build, training'
    """
    return text.partition(": ")[0]


def finish(
    result: Any,
    *,
    json: bool,
    quiet: bool = False,
    document: Any = None,
    sections: Callable[[], Sequence[Section]] | None = None,
    written: Path | None = None,
    page: Path | None = None,
    **layout: Any,
) -> None:
    """Print a result as JSON, or as tables followed by the files that were written; nothing if quiet.

    Args:
        result: what was computed, a :class:`normscope.core.display.Shown`.
        json: print JSON.
        quiet: print nothing else.
        document: what is printed as JSON; by default the result's own form.
        sections: returns the tables; by default the result's own, laid out with further keyword arguments.
        written: the file of the result.
        page: its page.
        **layout: how the result lays itself out.
    """
    if json:
        print(result.to_json() if document is None else json_text(document))
    elif not quiet:
        show(result.sections(**layout) if sections is None else sections())
        files = [f"{what}: {file}" for what, file in (("written", written), ("open", page)) if file is not None]
        if files:
            print("\n".join(("", *files)))


def json_text(document: Any) -> str:
    """Return data as strict JSON, indented like all JSON of the command line."""
    return json_module.dumps(document, indent=1, allow_nan=False)


def show(sections: Sequence[Section]) -> None:
    """Print sections on stdout: as tables on a terminal, as plain full-width text elsewhere.

    Control characters are spelled out.
    """
    from normscope.report.table import plain_text

    sections = [_without_control_characters(section) for section in sections]
    if not is_terminal(sys.stdout):
        print(plain_text(sections))
        return
    from rich.console import Console
    from rich.text import Text

    console = Console()
    for section in sections:
        console.print(Text(section.title, style="bold"))
        for line in _wrapped((*section.sentences, *section.lines), console.width):
            console.print(Text(line))
        if section.table is not None:
            console.print(_grid(section.table, console.width))
        for line in _wrapped(section.after, console.width):
            console.print(Text(line, style="dim"))
        console.print()


def _wrapped(lines: Sequence[str], width: int) -> list[str]:
    """Return lines indented by two, none wider than the terminal unless one of its words is."""
    from normscope.report.table import wrapped

    return [f"  {piece}" for line in lines for piece in wrapped(line, width - 2)]


def _grid(table: Table, width: int) -> Any:
    """Return a table for a terminal: if it does not fit, words are wrapped, but names and numbers are not."""
    from rich.table import Table as Grid
    from rich.text import Text

    columns = list(zip(table.columns, *table.rows, strict=True))
    natural = [max(map(len, cells)) for cells in columns]
    least = []
    for i, (title, *cells) in enumerate(columns):
        whole = i == 0 or title not in table.left
        words = [*title.split(), *(piece for cell in cells for piece in ([cell] if whole else cell.split()))]
        least.append(min(NAME, max(map(len, words), default=1)))
    between = 2 if sum(least) + 2 * len(columns) <= width else 1
    grid = Grid(box=None, header_style="dim", padding=(0, between - 1, 0, 1))
    fitted = _fitted(natural, least, width - between * len(columns))
    for column, wide in zip(table.columns, fitted, strict=True):
        side: Any = "left" if column in table.left else "right"
        grid.add_column(Text(column), justify=side, overflow="fold", width=wide)  # what is too long is never cut
    for row in table.rows:
        grid.add_row(*(Text(cell) for cell in row))
    return grid


def _fitted(natural: Sequence[int], least: Sequence[int], room: int) -> list[int]:
    """Return widths of columns that fit in a line: the widest shrink first, none below its minimum.

    >>> _fitted([10, 30, 20], [10, 5, 5], 40), _fitted([4, 9], [4, 6], 5)
    ([10, 15, 15], [4, 6])
    """
    widths = list(natural)
    while sum(widths) > room:
        loose = [i for i in range(len(widths)) if widths[i] > least[i]]
        if not loose:
            break
        widths[max(loose, key=lambda i: widths[i])] -= 1
    return widths


def _without_control_characters(section: Section) -> Section:
    table = section.table
    if table is not None:
        rows = tuple(tuple(map(visible, row)) for row in table.rows)
        table = replace(table, columns=tuple(map(visible, table.columns)), rows=rows)
    said: dict[str, Any] = {
        name: tuple(map(visible, getattr(section, name))) for name in ("sentences", "lines", "after")
    }
    return replace(section, title=visible(section.title), table=table, **said)
