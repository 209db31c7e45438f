"""``normscope symmetry``: which changes of the parameters leave the function of a model unchanged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from normscope.cli.analyze import checked_places
from normscope.cli.console import LOADING, Stages, aside, guarded, show
from normscope.cli.loading import Named, load
from normscope.cli.options import (
    MODEL,
    DataName,
    DataRoot,
    Everything,
    InputShape,
    Json,
    Limit,
    Normalize,
    Out,
    Quiet,
    Seed,
    Split,
    WeightsFile,
)
from normscope.cli.specification import parse_shape, writing
from normscope.core.files import write_text

if TYPE_CHECKING:
    from normscope.geometry.discover import Symmetries

FILE = "symmetry.json"


@guarded
def symmetry(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)],
    weights: WeightsFile = None,
    data: DataName = None,
    data_root: DataRoot = None,
    split: Split = "test",
    limit: Limit = None,
    normalize: Normalize = None,
    input: InputShape = None,
    mode: Annotated[str, typer.Option(help="BatchNorm statistics: batch or running.")] = "batch",
    loss: Annotated[
        str, typer.Option(help="cross_entropy if adding a constant to all logits changes nothing, none, or auto.")
    ] = "auto",
    batch: Annotated[int, typer.Option(min=2, help="Number of samples to verify on.")] = 8,
    orbits: Annotated[
        bool, typer.Option("--orbits", help="Measure how the outputs change along and across an orbit of each kind.")
    ] = False,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    everything: Everything = False,
) -> None:
    """Find the symmetries of MODEL: scales, shifts, rescalings, rotations, permutations, each verified.

    Candidates come from the graph; those that fail the verification in float64 are not reported. What is found is
    written to symmetry.json, which `normscope report` takes.
    """
    target, _ = checked_places(out, FILE, None, no_report=True, name=model)
    with aside(), Stages(quiet=quiet, lines=not json) as stages:
        stages(LOADING)
        named = Named(model, weights, data, data_root, split, limit, normalize, parse_shape(input))
        found = _run(named, mode, loss, batch, orbits, seed, stages)
    with writing(target):
        write_text(target, found.to_json() + "\n")
    if json:
        print(found.to_json())
    elif not quiet:
        from normscope.report.symmetry import symmetry_sections

        show(symmetry_sections(found, everything=everything))
        print(f"\nwritten: {target}")


def _run(named: Named, mode: str, loss: str, batch: int, orbits: bool, seed: int, stages: Stages) -> Symmetries:
    """Load model and data, and find the symmetries."""
    from normscope.geometry.discover import symmetry as discover

    loaded = load(named, seed, stages)
    with loaded.home.open():
        return discover(
            loaded.model,
            loaded.data,
            mode=mode,
            loss=loss,
            input_shape=loaded.shape,
            batch=batch,
            name=named.model,
            seed=seed,
            progress=stages,
            follow_orbits=orbits,
        )
