"""``normscope symmetry``: which changes of the parameters leave the function of a model unchanged."""

from typing import Annotated

from typer import Option

from normscope.cli import options
from normscope.cli.analyze import checked_places
from normscope.cli.console import Stages, finish, guarded
from normscope.cli.loading import Named, load
from normscope.cli.output_files import save

FILE = "symmetry.json"


@guarded
def symmetry(
    model: options.Model,
    weights: options.WeightsFile = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    split: options.Split = "test",
    limit: options.Limit = None,
    normalize: options.Normalize = None,
    input: options.InputShape = None,
    mode: Annotated[str, Option(help="BatchNorm statistics: batch or running.")] = "batch",
    loss: Annotated[
        str, Option(help="Loss: cross_entropy, which ignores a constant added to all logits; none; or auto.")
    ] = "auto",
    batch: Annotated[int, Option(min=2, help="Number of samples to verify on.")] = 8,
    orbits: Annotated[
        bool, Option("--orbits", help="Measure how the outputs change along and across an orbit of each kind.")
    ] = False,
    seed: options.Seed = 0,
    out: options.Out = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    everything: options.Everything = False,
) -> None:
    """Find the symmetries of MODEL: scales, shifts, rescalings, rotations, permutations, each verified.

    Candidates come from the graph; those that fail the verification in float64 are not reported. What is found is
    written to symmetry.json, which `normscope report` takes.
    """
    target, _ = checked_places(out, FILE, None, no_report=True, name=model)
    with Stages(quiet=quiet, lines=not json) as stages:
        from normscope.geometry.discover import symmetry as discover

        loaded = load(Named(model, weights, data, data_root, split, limit, normalize, input), seed, stages)
        found = loaded.call(discover, loaded.data, mode=mode, loss=loss, batch=batch, seed=seed, follow_orbits=orbits)
    save(found, target)
    finish(found, json=json, quiet=quiet, written=target, everything=everything)
