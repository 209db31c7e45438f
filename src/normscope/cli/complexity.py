"""``normscope complexity``: iteration counts that follow from the constants of a network, printed and as they hold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, BadParameter, Option

from normscope.cli import options
from normscope.cli.analyze import Request, measured
from normscope.cli.console import Stages, finish, guarded
from normscope.core.files import user_path

if TYPE_CHECKING:
    from normscope.core.result import Result
    from normscope.lipschitz.weights.result import WeightResult

_MODEL = "A result.json written by analyze, or a model as for analyze, e.g. 'zoo:relu10[norm=bn]'."


@guarded
def complexity(
    model: Annotated[str, Argument(metavar="MODEL", help=_MODEL, show_default=False)],
    alpha: Annotated[float, Option(help="Target accuracy: norm of the gradient, or distance from a minimum.")] = 0.1,
    delta: Annotated[float, Option(help="Radius in Goldstein's definition of stationarity.")] = 0.1,
    gap: Annotated[float, Option(help="Initial loss minus its infimum.")] = 1.0,
    radius: Annotated[float, Option(help="Distance from the start to a minimizer, for convex losses.")] = 1.0,
    signal: Annotated[float, Option(help="Bound on the norm of the input of each layer.")] = 1.0,
    loss: Annotated[str, Option(help="Name of the loss, e.g. cross-entropy or l1.")] = "cross-entropy",
    weights: options.WeightsFile = None,
    data: Annotated[str | None, Option(help="Data for a model, as for analyze.")] = None,
    data_root: options.DataRoot = None,
    limit: options.Limit = None,
    input: options.InputShape = None,
    json: options.PlainJson = False,
) -> None:
    """Show how many iterations each layer of MODEL needs by the papers' corollaries, with and without its normalizers.

    Corollaries 18 and 19 as printed, and what the theorems they cite really say: for the network as a plain chain,
    normalizer k after layer k, as the corollaries assume, and for a model also on its real graph.
    """
    from normscope.lipschitz.loss import loss_constant
    from normscope.papers.than2025.complexity.network_complexity import QUICK, Setting, iterations_of

    setting = Setting(alpha, delta, gap, radius, signal)
    loss_constant(loss, 1)  # an unknown name is reported before any work
    found: WeightResult | None = None
    if Path(model).suffix == ".json":
        if weights is not None:
            raise BadParameter("A stored result has its weights. Name the model instead.", param_hint="--weights")
        result = _read(user_path(model))
    else:
        request = Request(model, weights, data, data_root, "test", limit, None, input, None, QUICK)
        result, found = _analyzed(request, quiet=json)
    finish(iterations_of(result, found, loss, setting), json=json)


def _read(path: Path) -> Result:
    from normscope.analysis.stored_results import read_result
    from normscope.core.errors import InputError
    from normscope.core.result import Result

    found = read_result(path)
    if not isinstance(found, Result):
        raise InputError(f"Expected the result of a model, got the result of a checkpoint: {path}.")
    return found


def _analyzed(request: Request, *, quiet: bool) -> tuple[Result, WeightResult]:
    """Return the results of quick analyses, in the input and in the weights: constants, no search for bad inputs."""
    from normscope.analysis import analyze
    from normscope.analysis.checkpoint import is_checkpoint
    from normscope.analysis.weight_lipschitz import weight_lipschitz
    from normscope.core.errors import InputError

    if is_checkpoint(request.model):
        raise InputError(
            f"Expected a model, got a checkpoint: {request.model}. Iteration counts need the network itself; "
            "pass the checkpoint with --weights."
        )
    with Stages(quiet=quiet) as stages:
        return measured(request, stages, analyze), measured(request, stages, weight_lipschitz)
