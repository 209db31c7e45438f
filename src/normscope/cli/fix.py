"""``normscope fix``: new weights for the same function."""

from pathlib import Path
from typing import Annotated

from typer import BadParameter, Option

from normscope.cli import options
from normscope.cli.console import Stages, guarded, line_width, visible
from normscope.cli.loading import Named, load
from normscope.cli.output_files import checked_file, save
from normscope.core.files import user_path


@guarded
def fix(
    model: options.Model,
    dry_run: Annotated[
        bool, Option("--dry-run", help="Show the changes without writing anything (the default without --write-to).")
    ] = False,
    write_to: Annotated[
        Path | None, Option(help="Write the new state dict to this file (.safetensors or .pt).")
    ] = None,
    only: Annotated[
        list[str] | None, Option(help="Apply only these fixes: drop-bias, fold, balance, unit-norm, rotate.")
    ] = None,
    rotate: Annotated[
        bool,
        Option(
            "--rotate",
            help="Rotate residual streams so that no channel is an outlier; other fixes only if --only names them.",
        ),
    ] = False,
    weights: options.WeightsFile = None,
    data: options.DataName = None,
    data_root: options.DataRoot = None,
    split: options.Split = "test",
    limit: options.Limit = None,
    normalize: options.Normalize = None,
    input: options.InputShape = None,
    seed: options.Seed = 0,
    force: Annotated[bool, Option("--force", help="Overwrite the file if it exists.")] = False,
    json: options.Json = False,
    everything: Annotated[bool, Option("--all", help="List every change.")] = False,
) -> None:
    """Fix the weights of MODEL where that leaves its function unchanged.

    Sets cancelled biases to zero, folds BatchNorm into the layer before it, balances ReLU layers, rescales
    scale-invariant weights. The outputs are verified to be the same to 1e-5 in evaluation; a change that is not exact
    is refused, with the reason. The result is a state dict for the unchanged code, and advice on what to change in it.
    """
    write_to = _checked(dry_run, write_to, force)
    with Stages(lines=not json) as stages:
        from normscope.doctor.fixes import fix as mend

        loaded = load(Named(model, weights, data, data_root, split, limit, normalize, input), seed, stages)
        names = [name for item in only or [] for name in options.split_commas(item)]
        result = loaded.call(mend, only=[*names, "rotate"] if rotate else names, limit=limit, seed=seed)
        if write_to is not None:
            save(result, write_to, "--write-to")
    if json:
        print(result.to_json())
        return
    from normscope.report.fixes import fix_text
    from normscope.report.table import wrapped

    for line in visible(fix_text(result, everything=everything), keep="\n").splitlines():
        print("\n".join(wrapped(line, line_width())))
    if write_to is not None:
        print(f"written: {write_to}" if result.changes else f"written: {write_to} (the weights are unchanged)")
    elif result.changes and not dry_run:
        print("Nothing was written. Use --write-to FILE.safetensors to write the new weights.")


def _checked(dry_run: bool, target: Path | None, force: bool) -> Path | None:
    """Return the file for the new weights, if any; raise before any work is done if it cannot be used."""
    if target is None:
        return None
    if dry_run:
        raise BadParameter("Pass either --dry-run or --write-to FILE.safetensors.", param_hint="--write-to")
    if target.suffix not in (".safetensors", ".pt"):
        raise BadParameter(
            f"Expected a file ending in .safetensors or .pt, got {target.name}.", param_hint="--write-to"
        )
    place = user_path(target)
    if place.is_file() and not force:
        raise BadParameter(f"File exists: {place}. Use --force to overwrite it.", param_hint="--write-to")
    return checked_file(target, "--write-to")
