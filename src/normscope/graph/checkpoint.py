"""Checkpoints read without their model: names and shapes from the header, tensors one at a time.

Files may be larger than memory: safetensors and zip-format .pt files are mapped from disk, and the mapping is renewed
as it is read, so that little more than the largest tensor is resident.
"""

import contextlib
import itertools
import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import torch

from normscope.core.errors import WeightsError, listed
from normscope.core.files import user_path
from normscope.graph.safe_load import (
    CHECKPOINT,
    PICKLED,
    SAFETENSORS,
    existing_file,
    is_mappable,
    is_safetensors,
    refuse_unlike_numbers,
    safe_load,
    tensors_by_name,
    unreadable,
)

INDEX = ".safetensors.index.json"
#: Endings of index files, which tell which file contains which tensor.
INDICES = (INDEX, *(f"{ending}.index.json" for ending in PICKLED))
_KIND = replace(CHECKPOINT, endings=(SAFETENSORS, *INDICES, *PICKLED), directory=f"Name the file or the {INDEX} in it.")
#: Files that a training run writes beside the weights.
BESIDE = re.compile(
    r"(training_args|trainer_state|optimizer|scheduler|scaler|sampler|rng_state|random_states|.*_optim_states)(_\d+)?\.",
    re.IGNORECASE,
)
#: Bytes that may stay mapped together; a smaller window would open a file of many small tensors too often.
WINDOW = 16 * 2**20


class Role(Enum):
    """What a tensor probably is, guessed from its name and shape."""

    MATRIX = "matrix"
    CONVOLUTION = "convolution"
    EMBEDDING = "embedding"
    NORM_SCALE = "norm scale"
    BIAS = "bias"
    RUNNING_STATISTICS = "running statistics"
    OTHER = "other"


_STATISTICS = re.compile(r"(running_(mean|var)|num_batches_tracked|moving_(mean|variance))$")
_BIAS = re.compile(r"(^|_)(bias|beta)(_[ih]h_l\d+(_reverse)?)?$")
_NORM = re.compile(r"norm|(^|[._])(bn|ln|gn|rms)(\d|_|\.|$)")
_EMBEDDING = re.compile(r"embed|(^|[._])(wte|wpe|positions?|tokens?)(\.|$)")
_WEIGHT = re.compile(r"^(weight(_v|_orig)?|kernel|original1?|v)$")
#: Parts that are not weights on their own: gains of weight normalization, masks of pruning.
_PART = re.compile(r"^(weight_g|original0|\w+_mask)$")


def guess_role(name: str, shape: tuple[int, ...]) -> Role:
    """Return what a tensor of this name and shape probably is.

    >>> guess_role("layer1.0.conv1.weight", (16, 3, 3, 3)).value
    'convolution'
    >>> guess_role("model.layers.0.input_layernorm.weight", (4096,)).value
    'norm scale'
    >>> guess_role("transformer.wte.weight", (50257, 768)).value
    'embedding'
    """
    lower = name.lower()
    last = lower.rpartition(".")[2]
    axes = len(shape)
    if _STATISTICS.search(lower):
        return Role.RUNNING_STATISTICS
    if _BIAS.search(last):
        return Role.BIAS
    if axes == 0 or _PART.search(last):
        return Role.OTHER
    if axes == 1:
        scale = last in ("weight", "gamma", "scale", "g") or _NORM.search(lower)
        return Role.NORM_SCALE if scale and not last.startswith("_") else Role.OTHER
    if axes <= 3 and _EMBEDDING.search(lower):
        return Role.EMBEDDING
    if axes == 2:
        return Role.MATRIX
    return Role.CONVOLUTION if _WEIGHT.search(last) else Role.OTHER


@dataclass(frozen=True)
class TensorEntry:
    """One tensor of a checkpoint, without its values.

    Attributes:
        name: its key.
        shape: its shape.
        dtype: e.g. ``"float32"``.
        nbytes: bytes of its values.
        file: the file it is in.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    nbytes: int
    file: Path

    @property
    def role(self) -> Role:
        """What the tensor probably is."""
        return guess_role(self.name, self.shape)


Getter = Callable[[str], torch.Tensor]


@contextlib.contextmanager
def _safetensors(path: Path) -> Iterator[tuple[list[str], Getter]]:
    from safetensors import SafetensorError, safe_open

    try:
        opened = safe_open(path, framework="pt", device="cpu")
    except (SafetensorError, OSError) as error:
        raise unreadable(path, _KIND, error) from error
    with opened as file:

        def get(name: str) -> torch.Tensor:
            try:
                tensor: torch.Tensor = file.get_tensor(name)
            except SafetensorError as error:  # a format that this torch has no name for
                raise WeightsError(
                    f"Unsupported dtype in {path}: {name}: {error}. Save it in a dtype that torch has."
                ) from error
            return tensor

        yield list(file.keys()), get


@contextlib.contextmanager
def _pickled(path: Path) -> Iterator[tuple[list[str], Getter]]:
    tensors = tensors_by_name(safe_load(path, _KIND), str(path))
    refuse_unlike_numbers(tensors, str(path))
    yield list(tensors), lambda name: tensors[name].detach()  # in a module that was saved whole they are parameters


def opened(path: Path) -> contextlib.AbstractContextManager[tuple[list[str], Getter]]:
    """Return a context with the names of the tensors in one file, and a function that reads a tensor by its name."""
    return _safetensors(path) if is_safetensors(path) else _pickled(path)


def _shards(index: Path) -> dict[Path, list[str]]:
    """Return the files a sharded checkpoint's index names, each with its tensors."""
    try:
        weight_map = json.loads(index.read_text(encoding="utf-8"))["weight_map"]
        pairs = [(str(name), str(file)) for name, file in weight_map.items()]
    except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
        raise WeightsError(
            f"Expected {index} to be JSON with a weight_map from tensors to files; "
            f"{type(error).__name__}: {error}. Save the checkpoint again."
        ) from error
    shards: dict[Path, list[str]] = {}
    for name, file in sorted(pairs, key=lambda pair: pair[1]):
        if Path(file).name != file:
            raise WeightsError(
                f"Expected {index} to name files in its own folder, got {file!r}. Save the checkpoint again."
            )
        shards.setdefault(index.parent / file, []).append(name)
    absent = [path.name for path in shards if not path.is_file()]
    if absent or not shards:
        what = f"lacks {listed(absent)}" if absent else "names no file"
        raise WeightsError(
            f"The sharded checkpoint is incomplete: {index} {what}. Copy all of its files into that folder."
        )
    return shards


def checkpoint_files(path: str | Path) -> list[Path]:
    """Return the files to read: the one named, or those in a directory.

    In a directory these are the first of the following that exist: safetensors indices, safetensors files, indices of
    pickled files, pickled files. What a training run writes beside its weights (:data:`BESIDE`) is left out.

    >>> checkpoint_files("model.safetensors")
    [PosixPath('model.safetensors')]
    """
    place = user_path(path)
    if not os.path.isdir(place):
        return [place]
    found = [file for file in sorted(place.iterdir()) if not BESIDE.match(file.name) and file.is_file()]
    for endings in ((INDEX,), (SAFETENSORS,), INDICES, PICKLED):
        files = [file for file in found if file.name.lower().endswith(endings)]
        if files:
            return files
    raise WeightsError(f"No checkpoint ({SAFETENSORS}, {', '.join(PICKLED)}) found in {place}. Name the file.")


def read_header(path: str | Path) -> list[TensorEntry]:
    """Return name, shape, dtype and size of every tensor in a checkpoint, without reading their values.

    Args:
        path: a .safetensors file, a state dict saved by torch.save, or the index (.safetensors.index.json,
            .bin.index.json) of several files; a state dict is bare, or under ``state_dict``, ``model_state_dict`` or
            ``model``. No code in the file is run.

    Raises:
        WeightsError: if the file is missing, empty, cut short, unsafe, or holds no tensors, or one that is not plain
            numbers (quantized, sparse, nested, without values).

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"fc.weight": torch.ones(3, 2)}, f"{folder}/m.pt")
    ...     [(e.name, e.shape, e.dtype, e.nbytes, e.role.value) for e in read_header(f"{folder}/m.pt")]
    [('fc.weight', (3, 2), 'float32', 24, 'matrix')]
    """
    entries: list[TensorEntry] = []
    named = user_path(path)
    existing_file(named, _KIND)
    files = _shards(named) if named.name.lower().endswith(INDICES) else {named: []}
    for file, expected in files.items():
        with opened(file) as (names, get):
            absent = sorted(set(expected) - set(names))
            if absent:
                raise WeightsError(
                    f"{file.name} lacks {listed(absent)}, which {path} places there. Copy or save the file again."
                )
            for name in expected or names:
                tensor = get(name)
                dtype = str(tensor.dtype).removeprefix("torch.")
                nbytes = tensor.numel() * tensor.element_size()
                entries.append(TensorEntry(name, tuple(tensor.shape), dtype, nbytes, file))
    if not entries:
        raise WeightsError(f"No tensors found in {path}. {CHECKPOINT.save}")
    return entries


def _windows(entries: Sequence[TensorEntry], size: int) -> Iterator[list[TensorEntry]]:
    """Yield runs of entries that together have at most ``size`` bytes, or one entry that has more."""
    run: list[TensorEntry] = []
    total = 0
    for entry in entries:
        if run and total + entry.nbytes > size:
            yield run
            run, total = [], 0
        run.append(entry)
        total += entry.nbytes
    if run:
        yield run


def iterate_tensors(path: str | Path) -> Iterator[tuple[TensorEntry, torch.Tensor]]:
    """Yield every tensor of a checkpoint, one at a time; drop each before taking the next.

    Tensors are mapped from disk, so about the largest of them (at least 16 MiB) is in memory at any time. A .pt file
    in the format before torch 1.6, or compressed again, cannot be mapped and is read as a whole.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     torch.save({"a": torch.ones(2), "b": torch.zeros(3)}, f"{folder}/m.pt")
    ...     [(entry.name, float(tensor.sum())) for entry, tensor in iterate_tensors(f"{folder}/m.pt")]
    [('a', 2.0), ('b', 0.0)]
    """
    for file, group in itertools.groupby(read_header(path), key=lambda entry: entry.file):
        entries = list(group)
        mapped = is_safetensors(file) or is_mappable(file)
        size = max(WINDOW, *(entry.nbytes for entry in entries)) if mapped else sum(entry.nbytes for entry in entries)
        for run in _windows(entries, size):
            with opened(file) as (_, get):
                for entry in run:
                    yield entry, get(entry.name)
