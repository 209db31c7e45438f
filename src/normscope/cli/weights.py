"""``normscope weights``: how much a change of each weight can change the output."""

from __future__ import annotations

from typing import Annotated

import typer

from normscope.cli.analyze import Request, checked_numbers, measured, write
from normscope.cli.console import LOADING, Stages, aside, guarded, show
from normscope.cli.options import (
    MODEL,
    DataName,
    DataRoot,
    Device,
    Everything,
    InputShape,
    Json,
    Mode,
    Normalize,
    Out,
    Quiet,
    Seed,
    Split,
    Tolerance,
    WeightsFile,
)
from normscope.cli.specification import checked_file, checked_folder, new_folder, parse_shape

FILE = "weights.json"


@guarded
def weights(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=MODEL, show_default=False)],
    weights: WeightsFile = None,
    data: DataName = None,
    data_root: DataRoot = None,
    split: Split = "test",
    limit: Annotated[int | None, typer.Option(min=1, help="Use at most this many samples.", show_default="64")] = None,
    normalize: Normalize = None,
    input: InputShape = None,
    mode: Mode = "running",
    points: Annotated[int | None, typer.Option(min=1, help="Number of points at which Jacobians are computed.")] = None,
    tolerance: Tolerance = None,
    seed: Seed = 0,
    device: Device = None,
    stacked: Annotated[
        bool | None, typer.Option("--stacked/--no-stacked", help="Also treat a batch as one input.")
    ] = None,
    out: Out = None,
    json: Json = False,
    quiet: Quiet = False,
    everything: Everything = False,
) -> None:
    """Bound how much a change of each weight of MODEL changes its output, and write weights.json.

    Exact Jacobians at data points, certified constants over the data, and Theorem 12 as printed. Without
    --data only the constants with respect to layer outputs are bounded.
    """
    checked_numbers(tolerance)
    shape = parse_shape(input)
    target = checked_file(checked_folder(out or new_folder(model)) / FILE)
    options = {"mode": mode, "points": points, "tolerance": tolerance, "seed": seed, "stacked": stacked}
    request = Request(model, weights, data, data_root, split, limit, normalize, shape, device, options)
    with aside(), Stages(quiet=quiet, lines=not json) as stages:
        stages(LOADING)
        from normscope.analysis.weight_lipschitz import weight_lipschitz
        from normscope.report.weight_lipschitz import weight_sections

        result = measured(request, stages, weight_lipschitz)
    write(result, target)
    if json:
        print(result.to_json())
    elif not quiet:
        show(weight_sections(result, everything=everything))
        print(f"\nwritten: {target}")
