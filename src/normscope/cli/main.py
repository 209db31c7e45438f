"""The command line: one verb, one file. Nothing heavy is imported before a verb needs it."""

from __future__ import annotations

import atexit
import contextlib
import errno
import io
import sys
from typing import Annotated

import typer

from normscope import __version__
from normscope.cli.analyze import analyze
from normscope.cli.audit import audit
from normscope.cli.bounds import bounds
from normscope.cli.check import check
from normscope.cli.compare import compare
from normscope.cli.complexity import complexity
from normscope.cli.console import divert
from normscope.cli.curvature import curvature
from normscope.cli.decompose import decompose
from normscope.cli.demo import demo
from normscope.cli.explain import explain
from normscope.cli.extremal import extremal
from normscope.cli.fix import fix
from normscope.cli.report import report
from normscope.cli.reproduce import reproduce
from normscope.cli.statements import statements
from normscope.cli.symmetry import symmetry
from normscope.cli.watch import watch
from normscope.cli.weights import weights

app = typer.Typer(
    name="normscope",
    help="What normalization layers do to your network: certified Lipschitz constants, layer by layer and end to end.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
app.command("analyze")(analyze)
app.command("check")(check)
app.command("fix")(fix)
app.command("compare")(compare)
app.command("symmetry")(symmetry)
app.command("bounds")(bounds)
app.command("demo")(demo)
app.command("audit")(audit)
app.command("explain")(explain)
app.command("extremal")(extremal)
app.command("complexity")(complexity)
app.command("curvature")(curvature)
app.command("decompose")(decompose)
app.command("report")(report)
app.command("reproduce")(reproduce)
app.command("watch")(watch)
app.command("statements")(statements)
app.command("weights")(weights)


@app.command("version")
def version() -> None:
    """Print the version."""
    print(f"normscope {__version__}")


def _version_option(wanted: bool) -> None:
    if wanted:
        version()
        raise typer.Exit


@app.callback()
def common(
    show_version: Annotated[
        bool, typer.Option("--version", callback=_version_option, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options of every verb: only ``--version``; the help of the program is that of ``app``."""


def main() -> None:
    """Run the command line; a character that the terminal's encoding lacks is spelled out."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        try:
            app(prog_name="normscope")
        finally:
            atexit.register(divert)  # the last to be registered is the first to run: before what the user's code left
            with contextlib.suppress(BrokenPipeError):  # a reader who went away has seen enough
                sys.stdout.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        print(f"normscope: The output could not be written: {error.strerror}.", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
