"""``normscope compare``: models, checkpoints or earlier results side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from normscope.cli.analyze import Request, checked_places, write_page
from normscope.cli.analyze import run as analyzed
from normscope.cli.console import LOADING, Stages, aside, guarded, show
from normscope.cli.loading import Named
from normscope.cli.modulo import compare_modulo, refuse_unused
from normscope.cli.options import (
    DataName,
    DataRoot,
    Device,
    InputShape,
    Limit,
    Mode,
    NoReport,
    Normalize,
    Out,
    Quiet,
    ReportFile,
    Seed,
    Split,
)
from normscope.cli.specification import parse_shape, writing
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


@dataclass(frozen=True)
class Given:
    """What a user asks of ``compare``.

    Attributes:
        items: models, results or checkpoints.
        model: the model that checkpoints are weights of, if it was named.
        request: all else that is asked of each analysis; its ``model`` and ``weights`` are of no account.
        check: ask the doctor about models, too.
    """

    items: Sequence[str]
    model: str | None
    request: Request
    check: bool


@guarded
def compare(
    context: typer.Context,
    items: Annotated[list[str], typer.Argument(metavar="MODEL", help=_ITEMS, show_default=False)],
    model: Annotated[str | None, typer.Option(help="Model to load the checkpoints into.")] = None,
    data: DataName = None,
    data_root: DataRoot = None,
    split: Split = "test",
    limit: Limit = None,
    normalize: Normalize = None,
    input: InputShape = None,
    mode: Mode = "running",
    seed: Seed = 0,
    device: Device = None,
    modulo: Annotated[
        str | None,
        typer.Option(
            help=("symmetries: measure only how far apart the weights of two models are once symmetries are removed.")
        ),
    ] = None,
    printed: Annotated[bool, typer.Option("--printed", help="Also show the formulas printed in papers.")] = False,
    no_check: Annotated[bool, typer.Option("--no-check", help="Do not run the doctor.")] = False,
    out: Out = None,
    report: ReportFile = None,
    no_report: NoReport = False,
    json: Annotated[bool, typer.Option("--json", help="Print only the comparison, as JSON.")] = False,
    quiet: Quiet = False,
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
        named = Named("", None, data, data_root, split, limit, normalize, parse_shape(input))
        refuse_unused(context)
        compare_modulo(items, model, modulo, named, seed, out=out, json=json, quiet=quiet)
        return
    target, page = checked_places(out, FILE, report, no_report=no_report, name="compare")
    options = {"mode": mode, "seed": seed}
    request = Request("", None, data, data_root, split, limit, normalize, parse_shape(input), device, options)
    with aside(), Stages(quiet=quiet, lines=not json) as stages:
        found, findings = run(Given(items, model, request, not no_check), stages)
        with writing(target):
            found.save(target)
        page = write_comparison(found, findings, page)
    if json:
        print(found.to_json())
    elif not quiet:
        from normscope.report.comparison import comparison_sections

        show(comparison_sections(found, everything=everything, printed=printed))
        print(f"\nwritten: {target}")
        if page is not None:
            print(f"open: {page}")


def run(given: Given, stages: Stages) -> tuple[Comparison, dict[str, Sequence[Finding]]]:
    """Read or make the result of each item, and compare them.

    Args:
        given: what is asked.
        stages: called with a line of text at each step.

    Returns:
        The comparison, and what the doctor said of those it was asked about.

    Raises:
        NormscopeError: a subclass that says what is wrong with an item.
    """
    stages(LOADING)
    from normscope.analysis.checkpoint import is_checkpoint
    from normscope.analysis.compare import compare as compared
    from normscope.cli.report import read_whole
    from normscope.core.result import Result

    results: dict[str, Comparable] = {}
    findings: dict[str, Sequence[Finding]] = {}
    for name, item in zip(names_of(given.items), given.items, strict=True):
        if item.endswith(".json") and not item.endswith(".index.json"):
            results[name] = read_whole(user_path(item))
            continue
        weights = Path(item) if given.model is not None and is_checkpoint(item) else None
        request = replace(given.request, model=item if weights is None else given.model or item, weights=weights)
        say = _Prefixed(stages, name)
        found = results[name] = analyzed(request, say, check=given.check)
        if isinstance(found, Result) and found.findings is not None:
            findings[name] = found.findings
    return compared(results, findings), findings


class _Prefixed(Stages):
    """Stages that say which item they are about."""

    def __init__(self, stages: Stages, name: str) -> None:
        self._inner, self._name = stages, name

    def __call__(self, text: str) -> None:
        """Say what is being done now, and for which item."""
        self._inner(f"{self._name}, {text}")


def write_comparison(comparison: Comparison, findings: dict[str, Sequence[Finding]], page: Path | None) -> Path | None:
    """Write the page of a comparison, if there is one for it.

    Returns:
        The file, or nothing: bare checkpoints have no page in common.
    """
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
