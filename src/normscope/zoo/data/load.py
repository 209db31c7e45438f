"""Data by name or path, ready to be iterated."""

from collections.abc import Sequence
from pathlib import Path

import torch

from normscope.core.errors import InputError
from normscope.zoo.data.cifar10 import cifar10
from normscope.zoo.data.digits import TOP, digits
from normscope.zoo.data.mnist import mnist
from normscope.zoo.data.normalization import PRESETS, normalization
from normscope.zoo.data.source import Data, is_scaled
from normscope.zoo.data.tensor_file import EXAMPLES, tensor_file

#: Data sets by name.
DATASETS = ("digits", "mnist", "fashion-mnist", "cifar10")
PIXEL_TOP = 255.0


def load_data(
    name_or_path: str | Path,
    root: str | Path | None = None,
    split: str = "test",
    limit: int | None = None,
    batch_size: int = 128,
    normalize: str | tuple[Sequence[float], Sequence[float]] | None = None,
) -> Data:
    """Return a data set to iterate in batches; large .npy and .safetensors files are read as they are used.

    Args:
        name_or_path: one of :data:`DATASETS`, also with a preset as in ``"cifar10:imagenet"``; or a tensor file
            (.npy, .npz, .pt, .safetensors).
        root: where the files of a named data set lie; by default ``$NORMSCOPE_DATA``, ``./data`` and
            ``~/.cache/normscope``.
        split: ``"train"`` or ``"test"`` of a named data set; a file is one split.
        limit: use at most this many examples.
        batch_size: examples per batch.
        normalize: ``"unit"`` (pixels in [0, 1], the default for bytes), ``"raw"`` (the default for other numbers), a
            key of ``PRESETS``, or mean and standard deviation per channel.

    Returns:
        An iterable of ``Batch(inputs, labels)`` whose ``len`` is the number of examples. ``inputs()`` returns the
        inputs alone.

    Raises:
        InputError: if the data are unknown, absent, damaged, or do not fit the normalization.

    >>> data = load_data("digits", limit=200)
    >>> len(data), [tuple(batch.inputs.shape) for batch in data]
    (200, [(128, 1, 8, 8), (72, 1, 8, 8)])
    """
    text = str(name_or_path)
    name, colon, preset = text.partition(":")
    if name in DATASETS:
        if colon and normalize is not None:
            raise InputError(f"Normalization given twice: {text!r} and normalize={normalize!r}.")
        top = TOP if name == "digits" else PIXEL_TOP  # the largest value its pixels can have
        if name == "digits":
            records = digits(split)
        else:
            records = cifar10(root, split) if name == "cifar10" else mnist(name, root, split)
        choice = normalize if normalize is not None else preset or "unit"
        return Data(text, records, normalization(choice, top, records.shape), batch_size, limit)
    if Path(text).suffix.lower() not in EXAMPLES.endings and not Path(text).exists():
        raise InputError(
            f"Expected one of {', '.join(DATASETS)} (optionally with :{'|:'.join(PRESETS)}) or a file ending in "
            f"{', '.join(EXAMPLES.endings)}; got {text!r}."
        )
    stored = tensor_file(text)
    dtype = stored.part(0, 0)[0].dtype
    pixels = dtype == torch.uint8
    if normalize not in (None, "raw") and not is_scaled(dtype):
        raise InputError(
            f"Only uint8 and floating-point data can be normalized, but {text} has dtype "
            f"{str(dtype).removeprefix('torch.')}, which is treated as ids."
        )
    choice = normalize if normalize is not None else ("unit" if pixels else "raw")
    top = PIXEL_TOP if pixels else 1.0
    return Data(Path(text).name, stored, normalization(choice, top, stored.shape), batch_size, limit)
