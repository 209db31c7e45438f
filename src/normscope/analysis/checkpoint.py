"""Checkpoints without their model: the norm of every weight, with one tensor in memory at a time."""

from __future__ import annotations

import itertools
import math
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from normscope.core.display import Shown
from normscope.core.errors import InputError, NonFiniteError, WeightsError, listed
from normscope.core.files import Stored, user_path
from normscope.core.value import Kind, Value, product
from normscope.graph.checkpoint import INDICES, Role, TensorEntry, checkpoint_files, iterate_tensors, read_header
from normscope.graph.safe_load import PICKLED, SAFETENSORS, holds_tensors
from normscope.graph.weights_validation import USE_FINITE, non_finite_text
from normscope.linalg.bounds import NormBounds
from normscope.linalg.dense import LARGEST_COPIED, matrix_norm
from normscope.operators.normalizers.weight_norm import weight_norm_effective

Progress = Callable[[str], None]
_NOT_MEASURED = "not measured"
_MASK = "contains minus infinity, as masks do: no norm"
_UNDEFINED = "weight normalization: a direction v is zero, so the layer divides zero by zero: no norm"
#: Endings of the gain of a weight-normalized tensor, and of its direction.
GAINS = {"weight_v": "weight_g", "original1": "original0"}


@dataclass(frozen=True)
class TensorResult:
    """One tensor of a checkpoint."""

    name: str  #: its key
    role: str  #: what it probably is, guessed from its name and shape
    shape: tuple[int, ...]  #: its shape
    dtype: str  #: of its numbers, e.g. ``"bfloat16"``
    numbers: int  #: how many it holds
    #: upper bound on the norm of its layer: of the matrix, or of the convolution whatever the image size, its stride
    #: and its dilation
    upper: Value | None = None
    lower: Value | None = None  #: attained by the same, by a convolution on any image that holds a whole window
    #: of a convolution, upper bound on the norm of its reshaped kernel (outputs, inputs * kernel); the convolution
    #: itself may have a norm up to the root of the number of its taps as large
    kernel: Value | None = None
    #: ``largest_row`` (embedding), ``largest`` (norm scale, bias), ``std_min`` and ``std_max`` (running variance),
    #: ``frobenius`` (any other)
    details: dict[str, float] = field(default_factory=dict)
    note: str = ""  #: what a reader must know, e.g. that it is not the weight as it acts


@dataclass(frozen=True, repr=False)
class CheckpointResult(Stored, Shown):
    """Norms and statistics of the tensors of a checkpoint.

    Attributes:
        checkpoint: name of the file or folder, files, number of tensors and numbers, bytes.
        tensors: every tensor, in order.
        products: ``printed_weights``, the product of the upper bounds of all layers, and ``printed_kernels``, the same
            with the norms of reshaped kernels for convolutions, which is not a bound.
        messages: notes on the numbers.
    """

    _kind = "weights"
    _layout = ("normscope.report.checkpoint", "checkpoint_sections")
    _rows = "tensors"

    checkpoint: dict[str, Any]
    tensors: tuple[TensorResult, ...]
    products: dict[str, Value]
    messages: tuple[str, ...] = ()


def analyze_checkpoint(path: str | Path, progress: Progress | None = None) -> CheckpointResult:
    """Measure every weight of a checkpoint; no code in it is run, and one tensor at a time is in memory.

    Args:
        path: a .safetensors or .pt file, the index of several, or a directory that holds them.
        progress: called with a line of text at each tensor.

    Returns:
        The result, with ``to_dict``, ``to_json``, ``save``.

    Raises:
        WeightsError: if it cannot be read safely, holds weights that are not plain real numbers, or the files of a
            directory hold a tensor of one name twice.
        NonFiniteError: if a tensor holds NaN or infinity; it is named. Minus infinity in what may be a mask is listed.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"fc.weight": torch.diag(torch.tensor([3.0, 2.0]))}, f"{folder}/m.pt")
    ...     result = analyze_checkpoint(f"{folder}/m.pt")
    >>> round(result.tensors[0].upper.value, 9), result.products["printed_weights"].kind.value
    (3.0, 'printed')
    """
    say = progress or (lambda text: None)
    files = checkpoint_files(path)
    headers = _headers(files)
    notes = _notes({entry.name for entry in headers})
    gains: dict[str, Tensor] = {}
    results: list[TensorResult] = []
    for entry, tensor in itertools.chain.from_iterable(map(iterate_tensors, files)):
        say(f"tensor {len(results) + 1} of {len(headers)}: {entry.name}")
        if _is_gain(entry, tensor):
            gains[entry.name] = tensor.clone()
        found = _measure(entry, tensor, gains)
        results.append(replace(found, note=found.note or notes.get(entry.name, "")))
        del tensor
    return CheckpointResult(
        checkpoint={
            "name": Path(path).name,
            "files": sorted({entry.file.name for entry in headers if entry.file is not None}),
            "tensors": len(headers),
            "numbers": sum(r.numbers for r in results),
            "bytes": sum(entry.nbytes for entry in headers),
        },
        tensors=tuple(results),
        products=_products(results),
        messages=tuple(_messages(results, user_path(path))),
    )


def is_checkpoint(text: str) -> bool:
    """Return whether a command-line argument names a checkpoint rather than a model, by its suffix or as a directory.

    >>> is_checkpoint("a/model.safetensors"), is_checkpoint("zoo:relu10"), is_checkpoint("net.py:build")
    (True, False, False)
    """
    if text.lower().endswith((SAFETENSORS, *INDICES, *PICKLED)):
        return True
    path = user_path(text)
    return os.path.isdir(path) or (os.path.isfile(path) and holds_tensors(path))  # names may be too long for a file


def _headers(files: list[Path]) -> list[TensorEntry]:
    """Return the entries of the files of one checkpoint, in which names must be unique."""
    place: dict[str, Path] = {}
    entries = [(file, entry) for file in files for entry in read_header(file)]
    for file, entry in entries:
        other = place.setdefault(entry.name, file)
        if other != file:
            raise WeightsError(
                f"Expected one checkpoint in the directory, but {entry.name} is in {other.name} and in {file.name}. "
                "Name the file."
            )
    return [entry for _, entry in entries]


def _unmeasured(entry: TensorEntry, tensor: Tensor) -> str:
    """Return why a tensor has no norm, or an empty text."""
    if tensor.is_complex():
        raise WeightsError(
            f"Expected real weights, but {entry.name} is {entry.dtype}. Save real and imaginary parts separately."
        )
    if not tensor.is_floating_point():
        return "not floating point: no norm"
    if tensor.numel() == 0:
        return "empty"
    try:
        tensor.reshape(-1)[:1].to(torch.float64)
    except RuntimeError:  # some packed formats torch only stores
        return f"{_NOT_MEASURED}: torch cannot convert {entry.dtype} to numbers"
    nan = infinite = negative = 0
    for part in tensor.reshape(-1).split(LARGEST_COPIED):
        # One-byte formats lack these tests; float32 can represent all their values.
        plain = part.to(torch.float32) if part.element_size() == 1 else part
        if not bool(torch.isfinite(plain).all()):
            nan, infinite = nan + int(plain.isnan().sum()), infinite + int(plain.isinf().sum())
            negative += int(plain.isneginf().sum())
    if nan or infinite > negative or (infinite and _is_named_as_weight(entry)):
        raise NonFiniteError(
            f"Expected finite weights, but {entry.name} has {non_finite_text(nan, infinite, tensor.numel())}. "
            f"{USE_FINITE}"
        )
    return _MASK if infinite else ""


def _is_named_as_weight(entry: TensorEntry) -> bool:
    """Return whether the name of a tensor is that of a parameter or statistic rather than a mask."""
    last = entry.name.lower().rpartition(".")[2]
    known = (Role.EMBEDDING, Role.NORM_SCALE, Role.BIAS, Role.RUNNING_STATISTICS)
    return "mask" not in last and (entry.role in known or bool(re.search("weight|kernel|original", last)))


def _measure(entry: TensorEntry, tensor: Tensor, gains: dict[str, Tensor]) -> TensorResult:
    base = TensorResult(entry.name, entry.role.value, entry.shape, entry.dtype, tensor.numel())
    reason = _unmeasured(entry, tensor)
    if reason:
        return replace(base, note=reason)
    if entry.role in (Role.MATRIX, Role.CONVOLUTION):
        weight, rounding, note = _effective(entry, tensor, gains)
        return replace(base, note=note) if weight is None else _linear(base, weight, rounding, note)
    if entry.role is Role.EMBEDDING and tensor.ndim >= 2:
        rows = tensor.reshape(-1, tensor.shape[-1])
        bounds, parts = matrix_norm(rows), rows.split(max(1, LARGEST_COPIED // rows.shape[1]))
        top = max(float(torch.linalg.vector_norm(part.double(), dim=1).max()) for part in parts)
        details = {"largest_row": top * (1.0 + (rows.shape[1] + 8) * 2.0**-53)}  # rounded up
        return replace(base, upper=_upper(bounds), lower=_lower(bounds), details=details)
    details = _facts(entry, tensor)
    negative = details.get("variance_min", 0.0) < 0
    return replace(base, details=details, note="a negative variance" if negative else "")


def _linear(base: TensorResult, weight: Tensor, rounding: float, note: str) -> TensorResult:
    """Return the norm of a matrix, or of a convolution: at most ``sqrt(taps)`` times that of its reshaped kernel."""
    bounds = matrix_norm(weight.flatten(1)).widen(rounding)
    upper, kernel = _upper(bounds), None
    if base.role == Role.CONVOLUTION.value:
        windows = Value.of(math.sqrt(math.prod(weight.shape[2:])) * (1.0 + 2.0**-52), Kind.CERTIFIED)
        kernel, whole = upper, (upper * windows).log
        zeros = ("zero or circular padding",)
        upper = Value(whole, Kind.CERTIFIED, statement="normscope Proposition SN-2", assumptions=zeros)
    return replace(base, upper=upper, lower=_lower(bounds), kernel=kernel, note=note)


def _effective(entry: TensorEntry, tensor: Tensor, gains: dict[str, Tensor]) -> tuple[Tensor | None, float, str]:
    """Return the effective weight (``None`` if it is undefined), its relative rounding error, and a note.

    The direction of a weight-normalized tensor is combined with its gain where the gain came before it in the file.
    """
    prefix, dot, last = entry.name.rpartition(".")
    partner = GAINS.get(last)
    if partner is None:
        return tensor, 0.0, ""
    g = gains.get(f"{prefix}{dot}{partner}")
    axis = None if g is None else _gained_axis(tensor, g)
    if g is None or axis is None:
        stored = "weight normalization: the direction v" if last == "weight_v" else "as stored in a parametrization"
        return tensor, 0.0, f"{stored}, not the effective weight"
    try:
        weight = weight_norm_effective(tensor, g, axis)
    except InputError:
        return None, 0.0, _UNDEFINED
    # Each row errs relatively by (columns + 8) u, so the matrix by that times ||W||_F <= sqrt(side) ||W||.
    side = min(weight.shape[0], weight[0].numel())
    rounding = (tensor.numel() + 16) * 2.0**-53 * math.sqrt(side)
    return weight, rounding, "weight normalization: g v / ||v||, the effective weight"


def _gained_axis(v: Tensor, g: Tensor) -> int | None:
    """Return the axis along which g has one gain per slice of v, -1 for one gain in all, None if it is no gain of v."""
    if g.ndim == 0:
        return -1
    shapes = [(*(1,) * axis, size, *(1,) * (v.ndim - axis - 1)) for axis, size in enumerate(v.shape)]
    return shapes.index(tuple(g.shape)) if tuple(g.shape) in shapes else None


def _is_gain(entry: TensorEntry, tensor: Tensor) -> bool:
    """Return whether a tensor can be the gain of weight normalization: numbers along one axis at most."""
    named = entry.name.rpartition(".")[2] in GAINS.values()
    # A scalar under a general name may be anything: another parametrization, say a scale.
    along = tensor.ndim > 0 or entry.name.endswith("weight_g")
    return named and along and tensor.is_floating_point() and tensor.numel() == max(tensor.shape, default=1)


def _upper(bounds: NormBounds) -> Value:
    return Value(bounds.log_upper, Kind.CERTIFIED, statement="rump2006 Corollary 2.4")


def _lower(bounds: NormBounds) -> Value:
    return Value(bounds.log_lower, Kind.LOWER, statement="normscope norm")


def _facts(entry: TensorEntry, tensor: Tensor) -> dict[str, float]:
    """Return the largest magnitude of a scale or bias, or the extreme standard deviations of a variance."""
    if entry.role is Role.RUNNING_STATISTICS and entry.name.lower().endswith(("var", "variance")):
        low, high = (float(x) for x in torch.aminmax(tensor.double()))
        deviations = {"std_min": math.sqrt(max(low, 0.0)), "std_max": math.sqrt(max(high, 0.0))}
        return deviations | {"variance_min": low}
    if entry.role is Role.OTHER and tensor.ndim >= 2:
        parts = tensor.reshape(-1).split(LARGEST_COPIED)
        root = math.hypot(*(float(torch.linalg.vector_norm(part.double())) for part in parts))
        return {"frobenius": root * (1.0 + (tensor.numel() + 8) * 2.0**-53)}
    return {"largest": float(tensor.double().abs().max())}


def _notes(names: set[str]) -> dict[str, str]:
    """Return notes on weights that are normalized or pruned outside the file."""
    text = "before spectral normalization: the layer divides it by an estimate of its norm"
    old = {name for name in names if name.endswith("weight_orig") and f"{name[: -len('orig')]}u" in names}
    new = {name for name in names if name.endswith(".original") and f"{name[: -len('original')]}0._u" in names}
    pruned = {name for name in names if name.endswith("_orig") and f"{name[: -len('orig')]}mask" in names}
    return dict.fromkeys(old | new, text) | dict.fromkeys(pruned, "before pruning: the layer multiplies it by its mask")


def _products(results: list[TensorResult]) -> dict[str, Value]:
    """Return the products over matrices and convolutions, as printed (Lemma 5): of bounds, and of reshaped kernels."""
    layers = [r for r in results if r.role in (Role.MATRIX.value, Role.CONVOLUTION.value)]
    whole = product(r.upper for r in layers if r.upper is not None)
    kernels = product(v for r in layers if (v := r.kernel or r.upper) is not None)
    return {
        "printed_weights": Value(whole.log, Kind.PRINTED, statement="than2025 Lemma 5"),
        "printed_kernels": Value(kernels.log, Kind.PRINTED, statement="than2025 Lemma 5"),
    }


def _messages(results: list[TensorResult], path: Path) -> Iterator[str]:
    yield "weights only: no statement about the network; roles are guessed from names and shapes"
    if (path / "config.json").is_file():
        yield f"the directory has a config.json: pass hf:{path} to analyze the network itself"
    if not any(r.upper is not None for r in results):
        yield "no tensor looks like the weight of a linear layer"
    integers = [r.name for r in results if r.note.startswith("not floating point")]
    unreadable = sum(not name.endswith("num_batches_tracked") for name in integers)  # a counter of BatchNorm
    if unreadable:
        hold = "tensor holds" if unreadable == 1 else "tensors hold"
        yield f"{unreadable} {hold} integers: no norm (dequantize quantized weights first)"
    packed = sum(r.note.startswith(_NOT_MEASURED) for r in results)
    if packed:
        storage = f"{packed} tensors are {_NOT_MEASURED} because their format is for storage only"
        yield f"{storage}: save them in another format to get a norm"
    for note in (_MASK, _UNDEFINED):
        names = [r.name for r in results if r.note == note]
        if names:
            yield f"{listed(names)}: {note}, and excluded from the products"
    negative = [r.name for r in results if r.details.get("variance_min", 0.0) < 0]
    if negative:
        yield f"a running variance is negative in {listed(negative)}: the layer returns NaN there"
