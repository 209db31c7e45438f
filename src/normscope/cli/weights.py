"""``normscope weights``: how much a change of each weight can change the output."""

from typing import Annotated

from typer import Option

from normscope.cli import options
from normscope.cli.analyze import Request, measured
from normscope.cli.console import Stages, finish, guarded
from normscope.cli.output_files import checked_file, checked_folder, new_folder, save

FILE = "weights.json"


@guarded
def weights(
    model: options.Model,
    weights: options.WeightsFile = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    split: options.Split = "test",
    limit: Annotated[int | None, Option(min=1, help="Use at most this many samples.", show_default="64")] = None,
    normalize: options.Normalize = None,
    input: options.InputShape = None,
    mode: options.Mode = "running",
    points: Annotated[int | None, Option(min=1, help="Number of points at which Jacobians are computed.")] = None,
    tolerance: options.Tolerance = None,
    seed: options.Seed = 0,
    device: options.Device = None,
    stacked: Annotated[bool | None, Option("--stacked/--no-stacked", help="Also treat a batch as one input.")] = None,
    out: options.Out = None,
    json: options.Json = False,
    quiet: options.Quiet = False,
    everything: options.Everything = False,
) -> None:
    """Bound how much a change of each weight of MODEL changes its output, and write weights.json.

    Exact Jacobians at data points, certified constants over the data, and Theorem 12 as printed. Without
    --data only the constants with respect to layer outputs are bounded.
    """
    target = checked_file(checked_folder(out or new_folder(model)) / FILE)
    settings = {"mode": mode, "points": points, "tolerance": tolerance, "seed": seed, "stacked": stacked}
    request = Request(model, weights, data, data_root, split, limit, normalize, input, device, settings)
    with Stages(quiet=quiet, lines=not json) as stages:
        from normscope.analysis.weight_lipschitz import weight_lipschitz

        result = measured(request, stages, weight_lipschitz)
    save(result, target)
    finish(result, json=json, quiet=quiet, written=target, everything=everything)
