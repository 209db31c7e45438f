"""``normscope compare --modulo symmetries``: are two sets of weights the same network?"""

import json as json_module
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from normscope.cli.analyze import checked_places
from normscope.cli.console import Stages
from normscope.cli.loading import Named, load
from normscope.cli.specification import write_file

FILE = "alignment.json"
#: Options of ``compare`` that say how networks are analyzed or shown; here nothing is.
_OF_ANALYSES = ("device", "printed", "no_check", "report", "everything")


def refuse_unused(context: typer.Context) -> None:
    """Raise if an option was given that has no meaning together with ``--modulo``."""
    given = {p.name for p in context.command.params if p.name and _is_given(context, p.name)}
    if "mode" in given and context.params["mode"] != "batch":
        raise typer.BadParameter(
            "With --modulo, networks are compared as in training, where BatchNorm uses the statistics of the batch: "
            f"expected batch, got {context.params['mode']}.",
            param_hint="--mode",
        )
    for parameter in context.command.params:
        if parameter.name in given and parameter.name in _OF_ANALYSES:
            raise typer.BadParameter(
                "With --modulo, the weights are compared and nothing is analyzed. Leave this option out.",
                param_hint=parameter.opts[0],
            )


def _is_given(context: typer.Context, name: str) -> bool:
    """Return whether a user gave an option, be it with its default."""
    source = context.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def compare_modulo(
    items: Sequence[str],
    model: str | None,
    modulo: str,
    named: Named,
    seed: int,
    *,
    out: Path | None = None,
    json: bool = False,
    quiet: bool = False,
) -> None:
    """Print how far two sets of weights are apart before and after symmetries are removed.

    The items are two models, or two checkpoints of ``model``; ``named`` has the data and the shape.
    """
    if modulo != "symmetries":
        raise typer.BadParameter(f"Expected symmetries, got {modulo}.", param_hint="--modulo")
    if len(items) != 2:
        raise typer.BadParameter(f"Expected two models, got {len(items)}.", param_hint="ITEMS")
    target, _ = checked_places(out, FILE, None, no_report=True, name="compare")
    with Stages(quiet=quiet, lines=not json) as stages:
        from normscope.analysis.checkpoint import is_checkpoint
        from normscope.geometry.align import align
        from normscope.geometry.discover import symmetry

        loaded = []
        for item in items:
            weights = Path(item) if model is not None and is_checkpoint(item) else None
            request = replace(named, model=item if weights is None else model or item, weights=weights)
            loaded.append(load(request, seed, stages))
        first, second = loaded
        with first.home.open():
            found = symmetry(first.model, first.data, input_shape=first.shape, name=items[0], progress=stages)
            stages("aligning")
            result = align(found, second.model.state_dict())
    body: dict[str, Any] = {"before": result.before, "after": result.after, "moved": result.moved, "same": result.same}
    text = json_module.dumps({"schema_version": 1, "kind": "alignment", "models": list(items), **body}, indent=1)
    write_file(target, text + "\n")
    if json:
        print(text)
    if json or quiet:
        return
    print(f"relative distance of the weights: {result.before:.3g}; modulo symmetries: {result.after:.3g}")
    print(f"permuted units: {result.moved}")
    print("the same network" if result.same else "not the same network")
    print(f"\nwritten: {target}")
