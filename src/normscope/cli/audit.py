"""``normscope audit``: every claim of the papers, checked now."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from normscope.cli.console import Stages, guarded, show
from normscope.cli.demo import one_thread
from normscope.cli.options import Json, Quiet


@guarded
def audit(
    paper: Annotated[
        str | None,
        typer.Argument(help="000 to 004, a key such as than2025, or extensions; all without it.", show_default=False),
    ] = None,
    only: Annotated[str | None, typer.Option(help="Check these claims alone: ID[,ID], e.g. 001-L1,001-C11.")] = None,
    json: Json = False,
    out: Annotated[Path | None, typer.Option(help="Write the JSON result to this file.")] = None,
    markdown: Annotated[Path | None, typer.Option(help="Write the audit as a page to this file.")] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show numbers and corrections.")] = False,
    quiet: Quiet = False,
) -> None:
    """Check the claims of the papers behind Normscope, now: which hold, are loose, are false, and what is true instead.

    No verdict is stored: each follows from numbers that its check measures in this run.
    """
    ids = None if only is None else [id.strip() for id in only.split(",") if id.strip()]
    for option, file in (("--out", out), ("--markdown", markdown)):
        _checked_file(file, option)
    with Stages(quiet=quiet, lines=not json) as stages:
        stages("loading torch")
        from normscope.audits.run import audit as run

        with one_thread():
            found = run(paper, only=ids, progress=stages)
    from normscope.report.audit import audit_markdown, audit_sections

    texts = (("--out", out, lambda: found.to_json() + "\n"), ("--markdown", markdown, lambda: audit_markdown(found)))
    written = [_written(file, text(), option) for option, file, text in texts if file is not None]
    if json:
        print(found.to_json())
    elif not quiet:
        show(audit_sections(found, details=verbose or ids is not None))
        for file in written:
            print(f"written: {file}")


def _checked_file(file: Path | None, option: str) -> None:
    """Raise, before any work is done, if a file cannot be written.

    Raises:
        typer.BadParameter: if it is a folder, or below a file.
    """
    if file is None:
        return
    above = next((folder for folder in file.absolute().parents if folder.exists()), Path("/"))
    if file.is_dir() or not above.is_dir():
        raise typer.BadParameter(f"a file is written; {file} is a folder or below a file", param_hint=option)


def _written(file: Path, text: str, option: str) -> Path:
    """Write a file, whole or not at all.

    Raises:
        typer.BadParameter: if it cannot be written there.
    """
    from normscope.core.result import write_text

    try:
        return write_text(file, text)
    except OSError as error:
        raise typer.BadParameter(
            f"a file is written; {file}: {error.strerror or error}; name another place", param_hint=option
        ) from error
