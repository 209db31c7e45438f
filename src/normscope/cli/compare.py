"""``normscope compare``: models, checkpoints or earlier results side by side."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normscope.cli import options
from normscope.cli.analyze import Request, checked_places, write_page
from normscope.cli.analyze import run as analyzed
from normscope.cli.console import Stages, finish, guarded
from normscope.cli.loading import Named
from normscope.cli.modulo import compare_modulo, refuse_unused
from normscope.cli.specification import writing
from normscope.core.files import user_path
from normscope.core.names import numbered

if TYPE_CHECKING:
    from normscope.analysis.compare import Comparable, Comparison
    from normscope.core.finding import Finding

FILE = "comparison.json"
_ITEMS = (
    "Two or more of: models as for analyze (FILE.py:factory, zoo:NAME, ...), result.json "
    "files of earlier analyses, checkpoints (.safetensors, .pt). The others are compared with "
    "the first."
)


@guarded
def compare(
    context: typer.Context,
    items: Annotated[list[str], typer.Argument(metavar="MODEL", help=_ITEMS, show_default=False)],
    model: Annotated[str | None, typer.Option(help="Model to load the checkpoints into.")] = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    split: options.Split = "test",
    limit: options.Limit = None,
    normalize: options.Normalize = None,
    input: options.InputShape = None,
    mode: options.Mode = "running",
    seed: options.Seed = 0,
    device: options.Device = None,
    modulo: Annotated[
        str | None,
        typer.Option(
            help=("symmetries: measure only how far apart the weights of two models are once symmetries are removed.")
        ),
    ] = None,
    printed: Annotated[bool, typer.Option("--printed", help="Also show the formulas printed in papers.")] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not run the doctor.")] = False,
    out: options.Out = None,
    report: options.ReportFile = None,
    no_report: options.NoReport = False,
    json: Annotated[bool, typer.Option("--json", help="Print only the comparison, as JSON.")] = False,
    quiet: options.Quiet = False,
    everything: Annotated[
        bool, typer.Option("--all", help="Show every row, including those that did not change.")
    ] = False,
) -> None:
    """Compare models, checkpoints or earlier results side by side: what changed, layer by layer, and what is new.

    With --model, checkpoints are loaded into that model; without it, only their weights are compared.
    """
    if len(items) < 2:
        raise typer.BadParameter(f"Expected at least two models or results, got {len(items)}.", param_hint="MODEL")
    if modulo is not None:
        named = Named("", None, data, data_root, split, limit, normalize, input)
        refuse_unused(context)
        compare_modulo(items, model, modulo, named, seed, out=out, json=json, quiet=quiet)
        return
    target, page = checked_places(out, FILE, report, no_report=no_report, name="compare")
    settings = {"mode": mode, "seed": seed}
    request = Request("", None, data, data_root, split, limit, normalize, input, device, settings)
    with Stages(quiet=quiet, lines=not json) as stages:
        found, findings = run(items, model, request, stages, check=not no_check)
        with writing(target):
            found.save(target)
        page = write_comparison(found, findings, page)
    from normscope.report.comparison import comparison_sections

    sections = functools.partial(comparison_sections, found, everything=everything, printed=printed)
    finish(found, sections, json=json, quiet=quiet, written=target, page=page)


def run(
    items: Sequence[str], model: str | None, common: Request, stages: Stages, *, check: bool
) -> tuple[Comparison, dict[str, Sequence[Finding]]]:
    """Read or make the result of each item; return their comparison, and what the doctor said of models.

    Checkpoints are weights of ``model``, if it was named; all else that is asked of each analysis is in common.
    """
    from normscope.analysis.checkpoint import is_checkpoint
    from normscope.analysis.compare import compare as compared
    from normscope.cli.report import read_whole
    from normscope.core.result import Result

    results: dict[str, Comparable] = {}
    findings: dict[str, Sequence[Finding]] = {}
    for name, item in zip(names_of(items), items, strict=True):
        if item.endswith(".json") and not item.endswith(".index.json"):
            results[name] = read_whole(user_path(item))
            continue
        weights = Path(item) if model is not None and is_checkpoint(item) else None
        request = replace(common, model=item if weights is None else model or item, weights=weights)
        found = results[name] = analyzed(request, stages.about(name), check=check)
        if isinstance(found, Result) and found.findings is not None:
            findings[name] = found.findings
    return compared(results, findings), findings


def write_comparison(comparison: Comparison, findings: dict[str, Sequence[Finding]], page: Path | None) -> Path | None:
    """Write the page of a comparison and return it; bare checkpoints have no page in common."""
    from normscope.core.result import Result
    from normscope.report.comparison import comparison_sections

    results = [r for r in comparison.results if isinstance(r, Result)]
    if page is None or len(results) < len(comparison.models):
        return None
    named = dict(zip(comparison.models, results, strict=True))
    sections = comparison_sections(comparison)[2:]  # the page has the names and the whole networks already
    return write_page(named, page, findings=findings, sections=sections)


def names_of(items: Sequence[str]) -> list[str]:
    """Return a name for each item, none twice.

    >>> names_of(["zoo:mlp", "zoo:mlp", "a/result.json"])
    ['zoo:mlp', 'zoo:mlp (2)', 'a/result.json']
    """
    return numbered(items, "{} ({})", plain_first=True)
