"""The command line: one verb, one file. Nothing heavy is imported before a verb needs it."""

import atexit
import errno
import gc
import io
import os
import sys
from typing import Annotated, Any

import typer
from typer import Exit, Option
from typer.core import TyperGroup

from normscope import __version__
from normscope.core.lazy import late

#: The everyday verbs and those for research, each with a short description; verbs in neither come last.
EVERYDAY = {
    "analyze": "what moving the input does, what normalization does, what to do next",
    "check": "what is wrong with the normalization, and how to fix it",
    "fix": "fix what can be fixed without changing the function",
    "compare": "models or checkpoints side by side",
    "watch": "a training run in the browser, live",
    "report": "the HTML report of earlier results",
    "explain": "what a word, a code or a theorem means",
    "demo": "a first tour: one network with and without BatchNorm",
}
RESEARCH = {
    "symmetry": "changes of the weights that leave the function unchanged",
    "curvature": "eigenvalues of the Hessian, modulo symmetries",
    "bounds": "every generalization bound next to the true gap",
    "weights": "how the output depends on each weight",
    "complexity": "iteration counts of training, printed and corrected",
    "audit": "every claim of the papers, checked now",
    "reproduce": "figures and experiments of the papers",
    "extremal": "networks that attain a bound",
    "decompose": "where the error of a model comes from",
    "statements": "every implemented theorem, and where it is",
}


class Verbs(TyperGroup):
    """The verbs in groups."""

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the verbs in the order of the groups."""
        return list(dict.fromkeys((*EVERYDAY, *RESEARCH, *self.commands)))

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the verbs group by group."""
        rest = [name for name in self.commands if name not in EVERYDAY | RESEARCH]
        for title, names in (("Every day", EVERYDAY), ("Research", RESEARCH), ("More", rest)):
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str()) for name in names])


app = typer.Typer(
    name="normscope",
    cls=Verbs,
    help="What normalization layers do to your network: how the output reacts to the input, what to fix, and why.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
for _name, _words in (EVERYDAY | RESEARCH).items():
    app.command(_name, short_help=_words)(late(f"normscope.cli.{_name}", _name))


@app.command("version")
def version() -> None:
    """Print the version."""
    print(f"normscope {__version__}")


def _version_option(wanted: bool) -> None:
    if wanted:
        version()
        raise Exit


@app.callback()
def common(
    show_version: Annotated[
        bool, Option("--version", callback=_version_option, is_eager=True, help="Print the version.")
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
        if error.errno == errno.EPIPE:  # the reader closed the pipe
            raise SystemExit(1) from None
        if error.errno != errno.ENOSPC:
            raise
        print(f"normscope: The output could not be written: {error.strerror}.", file=sys.stderr)
        raise SystemExit(2) from None


if __name__ == "__main__":
    main()
