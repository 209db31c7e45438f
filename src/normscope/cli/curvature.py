"""``normscope curvature``: eigenvalues, trace and condition of the Hessian, in the mode used in training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import BadParameter, Option

from normscope.cli import options
from normscope.cli.analyze import checked_device, checked_places, write_page
from normscope.cli.console import STOPPED, Stages, finish, guarded
from normscope.cli.loading import Named, load
from normscope.cli.output_files import save
from normscope.core.errors import InputError

if TYPE_CHECKING:
    from normscope.curvature.result import CurvatureResult

FILE, PAGE = "curvature.json", "curvature.html"


@guarded
def curvature(
    model: options.Model,
    data: options.DataName = None,
    weights: options.WeightsFile = None,
    data_root: options.DataRoot = None,
    split: options.Split = "train",
    limit: Annotated[int, Option(min=2, help="Use at most this many samples.")] = 256,
    normalize: options.Normalize = None,
    mode: Annotated[
        str, Option(help="BatchNorm statistics: batch (as in training), running (as in evaluation) or frozen-batch.")
    ] = "batch",
    matrix: Annotated[
        str, Option(help="hessian, ggn, fisher, empirical-fisher or residual (hessian minus ggn).")
    ] = "hessian",
    parameters: Annotated[
        str | None, Option(help="Restrict to these parameters: patterns separated by commas.")
    ] = None,
    top: Annotated[int, Option(min=1, help="Number of largest eigenvalues.")] = 5,
    bottom: Annotated[int, Option(min=0, help="Number of smallest eigenvalues.")] = 1,
    tolerance: Annotated[float, Option(min=0.0, help="Relative residual at which an eigenvalue has converged.")] = 1e-5,
    max_products: Annotated[int, Option(min=1, help="Maximum number of products for the eigenvalues.")] = 300,
    probes: Annotated[int, Option(min=0, help="Number of random vectors for the trace.")] = 20,
    density: Annotated[int, Option(min=0, help="Number of random vectors for the spectral density.")] = 0,
    quotient: Annotated[
        bool | None,
        Option("--quotient/--no-quotient", help="Compute the spectrum and condition number modulo symmetries."),
    ] = None,
    symmetry_seconds: Annotated[
        float, Option(min=0.0, help="Seconds to search for symmetries; 0 to skip, inf for no limit.")
    ] = 30.0,
    modes: Annotated[bool, Option("--modes", help="Compare the three modes of BatchNorm.")] = False,
    sharpness: Annotated[bool, Option("--sharpness", help="Compute measures of sharpness.")] = False,
    radius: Annotated[float, Option(min=0.0, help="Radius of the balls for --sharpness.")] = 0.05,
    rate: Annotated[
        float | None, Option(min=0.0, help="Learning rate, to compare with the stability threshold.")
    ] = None,
    momentum: Annotated[float, Option(min=0.0, help="Momentum of the optimizer.")] = 0.0,
    masks: Annotated[int, Option(min=0, help="Number of fixed dropout masks to average over; 0 for none.")] = 0,
    batch: Annotated[int, Option(min=2, help="Samples per batch; BatchNorm normalizes each batch as a whole.")] = 128,
    double: Annotated[bool, Option("--double", help="Compute in float64.")] = False,
    seed: options.Seed = 0,
    device: options.Device = None,
    out: options.Out = None,
    report: Annotated[Path | None, Option(help="File for the HTML report.", show_default=f"{PAGE} in --out")] = None,
    no_report: options.NoReport = False,
    json: options.Json = False,
    quiet: options.Quiet = False,
    everything: options.Everything = False,
) -> None:
    """Measure the curvature of the loss of MODEL on labelled --data, and write curvature.json and curvature.html.

    Eigenvalues with residuals, trace with an interval, per layer; what the scale symmetries of normalized weights
    explain. Values that have not converged are marked. Ctrl-C keeps what is known.
    """
    if data is None:
        raise BadParameter("Curvature needs labelled data, such as --data digits.", param_hint="--data")
    target, page = checked_places(out, FILE, report, no_report=no_report, name=model, page=PAGE)
    chosen: dict[str, Any] = {
        "mode": mode, "matrix": matrix, "parameters": options.split_commas(parameters) or None,
        "top": top, "bottom": bottom, "tolerance": tolerance, "max_products": max_products, "probes": probes,
        "density": density, "quotient": quotient, "symmetry_seconds": symmetry_seconds, "modes": modes,
        "sharpness": sharpness or rate is not None,
        "radius": radius, "rate": rate or None, "momentum": momentum, "masks": masks, "batch": batch, "seed": seed,
    }  # fmt: skip
    named = Named(model, weights, data, data_root, split, limit, normalize, None)
    with Stages(quiet=quiet, lines=not json) as stages:
        result = run(named, chosen, stages, device=device, double=double)
    save(result, target)
    if page is not None:
        write_page({}, page, panels=[result])
    finish(result, json=json, quiet=quiet, written=target, page=page, everything=everything)
    if result.stopped:
        raise SystemExit(STOPPED)


def run(named: Named, chosen: dict[str, Any], stages: Stages, *, device: str | None, double: bool) -> CurvatureResult:
    """Load model and data, and measure with the chosen :class:`normscope.curvature.run.Settings`."""
    import torch

    from normscope.curvature.run import curvature as measured

    checked_device(device)
    loaded = load(named, chosen["seed"], stages)
    inputs, labels = (None, None) if loaded.data is None else loaded.data.tensors()
    if labels is None:
        raise InputError(f"Expected labelled data, but {named.data} has no labels.")
    model = loaded.model if device is None else loaded.model.to(device)
    with loaded.home.open():
        return measured(
            model, (inputs, labels), name=named.model, progress=stages,
            dtype=torch.float64 if double else None, **chosen,
        )  # fmt: skip
