"""The command line: one verb, one file. Nothing heavy is imported before a verb needs it."""

import atexit
import errno
import gc
import io
import os
import sys
from collections.abc import Callable
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from normscope import __version__
from normscope.cli.analyze import analyze
from normscope.cli.audit import audit
from normscope.cli.bounds import bounds
from normscope.cli.check import check
from normscope.cli.compare import compare
from normscope.cli.complexity import complexity
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

#: The verbs of every day, and those for research, each with a few words; what is in neither comes last.
EVERYDAY: dict[str, tuple[Callable[..., Any], str]] = {
    "analyze": (analyze, "what moving the input does, what normalization does, what to do next"),
    "check": (check, "what is wrong with the normalization, and how to fix it"),
    "fix": (fix, "fix what can be fixed without changing the function"),
    "compare": (compare, "models or checkpoints side by side"),
    "watch": (watch, "a training run in the browser, live"),
    "report": (report, "the HTML report of earlier results"),
    "explain": (explain, "what a word, a code or a theorem means"),
    "demo": (demo, "a first tour: one network with and without BatchNorm"),
}
RESEARCH: dict[str, tuple[Callable[..., Any], str]] = {
    "symmetry": (symmetry, "changes of the weights that leave the function unchanged"),
    "curvature": (curvature, "eigenvalues of the Hessian, modulo symmetries"),
    "bounds": (bounds, "every generalization bound next to the true gap"),
    "weights": (weights, "how the output depends on each weight"),
    "complexity": (complexity, "iteration counts of training, printed and corrected"),
    "audit": (audit, "every claim of the papers, checked now"),
    "reproduce": (reproduce, "figures and experiments of the papers"),
    "extremal": (extremal, "networks that attain a bound"),
    "decompose": (decompose, "where the error of a model comes from"),
    "statements": (statements, "every implemented theorem, and where it is"),
}


class Verbs(TyperGroup):
    """The verbs in groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs in the order of the groups."""
        return [*EVERYDAY, *RESEARCH, *(name for name in self.commands if name not in {**EVERYDAY, **RESEARCH})]

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs group by group."""
        rest = [name for name in self.list_commands(ctx) if name not in {**EVERYDAY, **RESEARCH}]
        for title, names in (("Every day", EVERYDAY), ("Research", RESEARCH), ("More", rest)):
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str()) for name in names])


app = typer.Typer(
    name="normscope",
    cls=Verbs,
    help=("What normalization layers do to your network: how the output reacts to the input, what to fix, and why."),
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _name, (_verb, _words) in {**EVERYDAY, **RESEARCH}.items():
    app.command(_name, short_help=_words)(_verb)


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
    gc.disable()  # until the first step after loading torch: imports make a million objects, and hardly any garbage
    atexit.register(gc.freeze)  # at exit Python would look for garbage in all of torch, for a second
    try:
        try:
            app(prog_name="normscope")
        finally:
            sys.stdout.flush()
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nothing more can be written there
        if error.errno == errno.EPIPE:  # a reader who went away has seen enough
            raise SystemExit(1) from None
        if error.errno != errno.ENOSPC:
            raise
        print(f"normscope: The output could not be written: {error.strerror}.", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
