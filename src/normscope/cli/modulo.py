"""``normscope compare --modulo symmetries``: are two sets of weights the same network?"""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import typer

from normscope.cli.console import LOADING, Stages, aside
from normscope.cli.loading import Named, load


def compare_modulo(
    items: Sequence[str], model: str | None, modulo: str, named: Named, seed: int, *, json: bool = False
) -> None:
    """Print how far two sets of weights are apart before and after symmetries are removed.

    Args:
        items: two models, or two checkpoints of ``model``.
        model: the model that checkpoints are weights of.
        modulo: what to remove: ``symmetries``.
        named: data and shape; its model is of no account.
        seed: random seed.
        json: print JSON.
    """
    if modulo != "symmetries":
        raise typer.BadParameter(f"Expected symmetries, got {modulo}.", param_hint="--modulo")
    if len(items) != 2:
        raise typer.BadParameter(f"Expected two models, got {len(items)}.", param_hint="ITEMS")
    with aside(), Stages(lines=not json) as stages:
        stages(LOADING)
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
    if json:
        body = {"schema_version": 1, "kind": "alignment", "models": list(items), **body}
        print(json_module.dumps(body, indent=1))
        return
    print(f"relative distance of the weights: {result.before:.3g}; modulo symmetries: {result.after:.3g}")
    print(f"permuted units: {result.moved}")
    print("the same network" if result.same else "not the same network")
