"""``bounds``: from a classifier and its data to every generalization bound next to the truth."""

import functools
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.bounds.cells import LOSSES, default_partition
from normscope.analysis.bounds.context import BoundsContext
from normscope.analysis.bounds.measured_network import MeasuredNetwork, gradient_norms, layer_margins
from normscope.analysis.bounds.result import BoundRow, BoundsResult, RefusedError
from normscope.analysis.bounds.rows import ROWS
from normscope.analysis.bounds.scores import (
    Scores,
    class_scores,
    fingerprint,
    fingerprint_of_data,
    labelled,
    repeated,
    sample_count,
    scored,
    stored,
)
from normscope.analysis.context import AnalysisRequest, checked
from normscope.analysis.options import Options
from normscope.core.errors import InputError
from normscope.core.json_form import read, to_plain
from normscope.core.numbers import check_fraction
from normscope.core.result import Rows
from normscope.generalization.margin_bounds import spectral_complexity
from normscope.generalization.partition import Partition
from normscope.graph.capture import Captured, capture
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs
from normscope.graph.sample_coupling import where_samples_meet

_LEVELS = (0.01, 0.1, 0.25, 0.5, 0.75, 0.9)


def bounds(
    model: nn.Module,
    *,
    train: Any,
    test: Any,
    delta: float = 0.05,
    loss: str = "ramp",
    clip: float | None = None,
    box: tuple[Any, Any] | None = None,
    partition: Partition | None = None,
    tuned_on_test: bool = False,
    mode: str = "running",
    posterior: float = 0.0,
    start: nn.Module | None = None,
    only: str | Sequence[str] | None = None,
    folder: str | Path | None = None,
    name: str = "",
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
) -> BoundsResult:
    """Compute every generalization bound of a trained classifier, next to its training error, test error and their gap.

    Args:
        model: any PyTorch classifier; it is not changed. BatchNorm uses its running statistics.
        train: the training data without augmentation: a pair of tensors, a loader of ``(inputs, labels)``, or what
            :func:`normscope.load_data` returns.
        test: samples that the model has not seen, in the same form.
        delta: failure probability of each certificate.
        loss: for Theorem 20: ``ramp`` of the margin (bounds the error), ``probability`` or ``cross-entropy``.
        clip: smallest probability in cross-entropy, which is unbounded otherwise.
        box: ``(low, high)`` that inputs lie in, numbers or tensors, fixed before the data; known for pixels.
        partition: for Theorem 20, chosen before the data; by default cells of random centres in the box.
        tuned_on_test: whether the test data was used to choose anything: bounds that need new data are then refused.
        mode: of BatchNorm; only ``running`` makes the network a function of one input.
        posterior: seconds of one core to train a randomized network of the same architecture for its PAC-Bayes bound, a
            prior from half of the data; none by default.
        start: with ``posterior``, a network of the same architecture that has not seen the data, if the layers of the
            model cannot draw their parameters anew.
        only: name or names of rows, if not all are wanted.
        folder: where finished parts are saved, so that the same call resumes where it stopped.
        name: of the model.
        seed: random seed.
        progress: called with a line of text at each step.

    Returns:
        The table, with ``to_dict``, ``to_json``, ``save``.

    Raises:
        NormscopeError: a subclass that says what is wrong with the model or the data.

    >>> torch.manual_seed(0)  # doctest: +ELLIPSIS
    <torch._C.Generator object at ...>
    >>> x = torch.rand(200, 2); y = (x.sum(1) > 1).long()
    >>> net = nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))
    >>> table = bounds(net, train=(x[:100], y[:100]), test=(x[100:], y[100:]), box=(0.0, 1.0), only=["held-out"])
    >>> table.rows["held-out"].status
    'certificate'
    """
    say = progress or (lambda text: None)
    check_fraction(delta, "delta, a probability,")
    if loss not in LOSSES:
        raise InputError(f"Expected a loss among {', '.join(LOSSES)}, got {loss!r}.")
    if not (math.isfinite(posterior) and posterior >= 0):
        raise InputError(f"Expected seconds to train a posterior, zero or more, got {posterior}.")
    say("capturing the graph")
    captured = capture_classifier(model, train, mode)
    place = None if folder is None else Path(folder)
    region = _box(box, train, tuple(captured.example[0].shape[1:]))
    classes = class_scores(captured, captured.tensors, captured.example[0]).shape[1]
    cells = partition if partition is not None else default_partition(region, sample_count(train), classes, seed)
    described = () if cells is None else (cells.name, cells.diameters, cells.centres)
    key = fingerprint(captured.tensors, *described, seed)
    names = {what: fingerprint_of_data(data, what) for what, data in (("train", train), ("test", test))}
    # cells may be built from data that the bound is not about
    free = None if cells is None else replace(cells, from_data=False, centres=None)
    with untouched(model):
        made = {
            what: stored(
                place, f"{what}-{key}-{names[what]}", functools.partial(scored, captured, data, what, parts, seed, say)
            )
            for what, data, parts in (("train", train, cells), ("test", test, free))
        }
        context = BoundsContext(
            MeasuredNetwork(captured, say), made["train"], made["test"], delta=delta, loss=loss, clip=clip, box=region,
            partition=cells, data=(train, test), model=model, start=start, seconds=posterior, seed=seed,
            not_fresh=_not_fresh(made["train"], made["test"], tuned_on_test),
        )  # fmt: skip
        state = {} if start is None else start.state_dict()
        code = fingerprint(key, *names.values(), delta, loss, clip, tuned_on_test, posterior, state)
        only = (only,) if isinstance(only, str) else only
        rows, messages = _table(context, only, None if place is None else place / f"rows-{code}.json")
        margins = _margins(context) if only is None else {}
    same = repeated(made["train"], made["test"])
    messages += [f"{same} of {made['test'].samples} test samples are training samples too"] if same else []
    return BoundsResult(name or type(model).__name__, _truth(context), Rows(rows), margins, tuple(messages))


def _not_fresh(train: Scores, test: Scores, tuned: bool) -> str:
    """Return why the test data is not independent of the network: it was used for tuning, or to train; or nothing."""
    if tuned:
        return "the test data was used for tuning, so it is not independent of the network"
    same = repeated(train, test)
    if 2 * same > test.samples:
        return f"{same} of {test.samples} test samples are training samples: the network was chosen with them"
    return ""


def capture_classifier(model: nn.Module, train: Any, mode: str = "running") -> Captured:
    """Capture a classifier on its first training samples.

    Raises:
        InputError: if the samples of a batch are coupled, or the model accepts only batches of one size.
    """
    request = AnalysisRequest(model, options=Options(mode=mode))
    coupled = (
        "a decision would then depend on the other samples of its batch, but the bounds are for functions of one input"
    )
    if mode != "running":
        raise InputError(f"BatchNorm in {mode} mode is not supported: {coupled}. Use mode='running'.")
    model = checked(request).model
    for name, module in model.named_modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm) and module.running_mean is None:
            raise InputError(f"BatchNorm {name} has no running statistics, which is not supported: {coupled}.")
    first = next(iter(labelled(train, "train")), None)
    if first is None:
        raise InputError("The training data is empty.")
    with untouched(model):
        captured = capture(model, ModelInputs((first[0][: min(8, len(first[0]))],)))
        if captured.graph.batch != "dynamic":
            raise InputError(f"Expected a model that accepts batches of any size, got one for {captured.graph.batch}.")
        where = where_samples_meet(captured)
    if where:
        raise InputError(f"The samples of a batch are coupled in {where}: {coupled}.")
    return captured


def _box(given: tuple[Any, Any] | None, train: Any, shape: tuple[int, ...]) -> tuple[Tensor, Tensor] | None:
    """Return the box that contains all inputs: as given, or that of normalized pixels, with a margin for rounding."""
    scale = getattr(train, "normalization", None)
    if given is not None:
        try:
            low, high = (torch.as_tensor(v, dtype=torch.float64).expand(shape).flatten() for v in given)
        except (TypeError, ValueError, RuntimeError):
            raise InputError(f"Expected a box (low, high), numbers or tensors of shape {shape}, got {given}.") from None
        if not bool((low < high).all() and low.isfinite().all() and high.isfinite().all()):
            raise InputError("Expected a box with low < high in every entry, and finite ends.")
    elif scale is None or getattr(scale, "name", "raw") == "raw":
        return None
    else:
        pixels = (torch.full((1, *shape), float(v), dtype=torch.float64) for v in (0.0, scale.top))
        low, high = (scale(x).flatten() for x in pixels)
    room = 3e-7 * (high - low)
    return low - room, high + room


def _table(context: BoundsContext, only: Sequence[str] | None, file: Path | None) -> tuple[list[BoundRow], list[str]]:
    """Return all rows and messages; finished rows are saved in a file and read back by the next call."""
    known = [name for name, _ in ROWS]
    unknown = [name for name in only or () if name not in known]
    if unknown:
        hint = f"Known bounds (on the command line, separate names by ;): {'; '.join(known)}."
        raise InputError(f"Unknown bound {unknown[0]!r}. {hint}")
    kept: dict[str, Any] = json.loads(file.read_text()) if file is not None and file.exists() else {}
    rows: list[BoundRow] = []
    messages: list[str] = []
    try:
        for name, make in ROWS:
            if only is not None and name not in only:
                continue
            if name not in kept:
                context.network.say(f"bound: {name}")
                try:
                    found = make(context)
                except RefusedError as error:
                    found = BoundRow.refused(name, str(error), error.status)
                kept[name] = [to_plain(row) for row in (found if isinstance(found, list) else [found])]
                if file is not None:
                    file.write_text(json.dumps(kept))
            rows += [read(BoundRow, data) for data in kept[name]]
    except KeyboardInterrupt:
        messages.append(f"stopped after {len(rows)} rows")
    return rows, messages


def _truth(context: BoundsContext) -> dict[str, Any]:
    train, test = (s.errors / s.samples for s in (context.train, context.test))
    return {
        "train_error": train,
        "test_error": test,
        "gap": test - train,
        "train_samples": context.train.samples,
        "test_samples": context.test.samples,
        "classes": context.train.classes,
        "delta": context.delta,
        "loss": context.loss,
    }


def _margins(context: BoundsContext) -> dict[str, Any]:
    """Return quantiles of the training margins: raw, over the certified constant, over the complexity, in the input."""
    margins = context.train.margins
    levels = torch.tensor(_LEVELS, dtype=torch.float64)

    def quantiles(x: Tensor) -> dict[str, float]:
        return dict(zip(map(str, _LEVELS), torch.quantile(x.double(), levels).tolist(), strict=True))

    raw = quantiles(margins)
    out: dict[str, Any] = {"raw": raw}
    constant = max(context.network.constant.value * 2**0.5, 1e-300)
    out["certified distance"] = {k: max(v, 0.0) / constant for k, v in raw.items()}
    try:
        scale = spectral_complexity(context.network.chain)
        size = torch.tensor(scale).exp() * context.network.inputs_norm(context.train) / context.train.samples
        out["over spectral complexity"] = {k: v / float(size) for k, v in raw.items()}
    except RefusedError as error:
        out["over spectral complexity"] = {"refused": str(error)}
    some, slopes = gradient_norms(context.network, context.train)
    out["first-order distance"] = quantiles(some / slopes.clamp_min(1e-300))
    for place, values in layer_margins(context.network, context.train).items():
        out[f"distance in {place}"] = quantiles(values)
    return out
