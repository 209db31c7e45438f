"""``normscope audit``: every claim of the papers, checked now."""

import contextlib
from pathlib import Path
from typing import Annotated

from typer import Argument, BadParameter, Exit, Option

from normscope.cli import options
from normscope.cli.console import Stages, finish, guarded
from normscope.cli.demo import one_thread
from normscope.cli.loading import user_function
from normscope.cli.output_files import checked_apart, checked_file, save, write_file


@guarded
def audit(
    paper: Annotated[
        str | None,
        Argument(
            metavar="[PAPER]",
            help="Paper: 000 to 004, a key such as than2025, or extensions. Default: all.",
            show_default=False,
        ),
    ] = None,
    only: Annotated[str | None, Option(help="Check only these claims, e.g. 001-L1,001-C11.")] = None,
    bound: Annotated[
        str | None,
        Option(help="Try to break a generalization bound instead: a name, FILE.py:function, or list for the names."),
    ] = None,
    draws: Annotated[int, Option(min=1, help="Number of draws of each problem, with --bound.")] = 200,
    delta: Annotated[float, Option(help="Allowed failure probability of the bound, with --bound.")] = 0.05,
    seed: options.Seed = 0,
    json: options.Json = False,
    out: Annotated[Path | None, Option(help="Write the JSON result to this file.")] = None,
    markdown: Annotated[Path | None, Option(help="Write the audit as a Markdown page to this file.")] = None,
    verbose: Annotated[bool, Option("--verbose", "-v", help="Show numbers and corrections.")] = False,
    quiet: options.Quiet = False,
) -> None:
    """Check the claims of the papers behind Normscope now: which hold, which are loose or false, and what is true.

    No verdict is stored: each follows from numbers measured in this run. With --bound, a generalization
    bound is tested on problems whose risk is known; exit code 1 if it fails more often than allowed.
    """
    if bound is not None:
        if paper is not None or only is not None or out is not None or markdown is not None or verbose:
            raise BadParameter("With --bound, no claims are checked. Leave out the paper and the options for claims.")
        _bench(bound, draws, delta, seed, json=json, quiet=quiet)
        return
    ids = None if only is None else options.split_commas(only)
    out = None if out is None else checked_file(out)
    markdown = None if markdown is None else checked_file(markdown, "--markdown")
    checked_apart(markdown, out, "--markdown")
    with Stages(quiet=quiet, lines=not json) as stages:
        from normscope.papers.audit import audit as run

        with one_thread():
            found = run(paper, only=ids, progress=stages)
    if out is not None:
        save(found, out)
    if markdown is not None:
        from normscope.report.audit import audit_markdown

        write_file(markdown, audit_markdown(found), "--markdown")
    finish(found, json=json, quiet=quiet, details=verbose or ids is not None)
    if not json and not quiet:
        for file in filter(None, (out, markdown)):
            print(f"written: {file}")


def _bench(bound: str, draws: int, delta: float, seed: int, *, json: bool, quiet: bool) -> None:
    """Try to break a bound; exit with code 1 if it is broken."""
    with Stages(quiet=quiet, lines=not json) as stages:
        stages("loading the problems")
        from normscope.generalization.bench.run import KNOWN_BOUNDS, try_bound

        found = None
        if bound != "list":
            with user_function(bound, seed) if ":" in bound else contextlib.nullcontext(bound) as tried:
                found = try_bound(tried, delta=delta, draws=draws, seed=seed, name=bound, progress=stages)
    if found is None:
        print("\n".join(KNOWN_BOUNDS))
        return
    finish(found, json=json, quiet=quiet)
    if found.broken:
        raise Exit(1)
