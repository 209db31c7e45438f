"""``normscope report``: the HTML report from saved results, and results from a report."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from normscope.cli import options
from normscope.cli.analyze import FILE, REPORT, write_page
from normscope.cli.console import guarded
from normscope.cli.output_files import checked_file, write_file
from normscope.core.errors import InputError
from normscope.core.files import user_path
from normscope.core.names import numbered

if TYPE_CHECKING:
    from normscope.analysis.checkpoint import CheckpointResult
    from normscope.analysis.stored_results import PanelResult
    from normscope.core.result import Result


@guarded
def report(
    results: Annotated[
        list[Path] | None,
        Argument(
            metavar="RESULT",
            help=f"{FILE} of one or several analyses, or the folders they are in; curvature.json, bounds.json, "
            "symmetry.json and weight_normalization.json become panels of the same page.",
            show_default=False,
        ),
    ] = None,
    from_html: Annotated[
        Path | None, Option("--from-html", help="Extract the results from this report instead.")
    ] = None,
    out: Annotated[
        Path | None,
        Option(
            help="File to write; with --from-html and several results, the folder for theirs.",
            show_default=f"{REPORT}, or {FILE} with --from-html",
        ),
    ] = None,
    title: Annotated[str, Option(help="Title of the page.", show_default="the model's name")] = "",
    quiet: options.Quiet = False,
) -> None:
    """Write the HTML report of saved results, side by side if there are several, or extract results from a report."""
    given = [result_file(user_path(path)) for path in results or []]
    if from_html is not None:
        if given:
            raise BadParameter("Results and --from-html cannot be used together.")
        written = extract(user_path(from_html), out)
    elif given:
        shown, panels = read_results(given)
        target = checked_file(out or Path(REPORT))  # later, since it says that a file is replaced
        written = [write_page(shown, target, "--out", panels=panels, title=title)]
    else:
        raise BadParameter(f"Expected at least one {FILE}, or a report with --from-html.")
    if not quiet:
        for path in written:
            print(f"written: {path}")


def read_results(paths: Sequence[Path]) -> tuple[Result | CheckpointResult | dict[str, Result], list[PanelResult]]:
    """Return the one capacity result in files, or several by name; and what is shown beside them."""
    from normscope.analysis.checkpoint import CheckpointResult
    from normscope.core.result import Result

    found = [_read_shown(path) for path in paths]
    panels = [r for r in found if not isinstance(r, Result | CheckpointResult)]
    named = [(path, r) for path, r in zip(paths, found, strict=True) if isinstance(r, Result)]
    if len(found) == 1 and isinstance(found[0], Result | CheckpointResult):
        return found[0], []
    if len(named) + len(panels) < len(found):
        raise InputError("Only results of models can be shown side by side; report each checkpoint by itself.")
    if len(named) == 1:
        return named[0][1], panels
    return dict(zip(_names([path for path, _ in named]), (r for _, r in named), strict=True)), panels


def result_file(path: Path) -> Path:
    """Return the result in a folder that ``analyze --out`` wrote; any other path is returned as it is."""
    inside = path / FILE
    return inside if os.path.isfile(inside) else path  # a model's specification may be too long for Path.is_file


def read_whole(path: Path, makers: str = "`normscope analyze`") -> Result | CheckpointResult:
    """Return the result in a file, after checking that all of it can be shown."""
    from normscope.analysis.stored_results import read_result
    from normscope.report.html import report_html

    found = read_result(path, makers)
    with _undamaged(path, "analyze"):
        report_html(found)
    return found


def _read_shown(path: Path) -> Result | CheckpointResult | PanelResult:
    """Return what a page can show, after checking that all of it can be shown."""
    from normscope.analysis.stored_results import PANELS, is_panel, read_panel
    from normscope.report.html import report_html

    if not is_panel(path):
        return read_whole(path, f"normscope analyze, {PANELS}")
    found = read_panel(path)
    with _undamaged(path, "the command that made it"):
        report_html({}, panels=[found])
    return found


@contextmanager
def _undamaged(path: Path, maker: str) -> Iterator[None]:
    """Turn an error in showing a result that was read into one line: any part of it may have been changed."""
    try:
        yield
    except Exception as error:
        reason = f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"
        raise InputError(f"The result in {path} is damaged ({reason}). Write it again with {maker}.") from error


def _names(paths: Sequence[Path]) -> list[str]:
    """Return a short name for each file: its own, or its folder's if files have the same name; all are different.

    >>> _names([Path("a/result.json"), Path("b/result.json")]), _names([Path("x.json"), Path("y.json")])
    (['a', 'b'], ['x', 'y'])
    """
    names = [p.stem for p in paths]
    if len(set(names)) < len(names):
        names = [p.resolve().parent.name or p.stem for p in paths]
    return numbered(names, "{} {}")


def extract(page: Path, out: Path | None) -> list[Path]:
    """Write the results inside a report: one to a file, several each to a folder of its name.

    By default, that is result.json in the current folder, or folders in it.
    """
    from normscope.report.embed import read_back

    try:
        text = page.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a text file"
        raise InputError(f"Not a normscope report: {page}: {reason}.") from error
    found = read_back(text)
    if not found:
        raise InputError(f"No result in this page: {page}. Only results of analyze can be extracted.")
    if len(found) == 1:
        targets = [checked_file(out or Path(FILE))]
    else:
        folder = out or Path()
        targets = [checked_file(folder / name / FILE) for name in _folders(list(found))]
    texts = (json.dumps(data, indent=1, allow_nan=False) + "\n" for data in found.values())
    return [write_file(target, text) for target, text in zip(targets, texts, strict=True)]


def _folders(names: Sequence[str]) -> list[str]:
    """Return names that are safe as folders, none twice: they come from a file anyone may have edited.

    >>> _folders(["plain", "../../etc", "zoo:cnn[norm=bn]"])
    ['plain', 'etc', 'zoo_cnn_norm_bn']
    """
    safe = [re.sub(r"[^\w.-]+", "_", name).strip("._") or "result" for name in names]
    return numbered(safe, "{}-{}")
