"""The idx format of MNIST: a short header, then bytes; compressed or not, read as a stream."""

import gzip
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np
import torch

from normscope.core.errors import InputError
from normscope.graph.safe_load import unreadable
from normscope.zoo.data.source import Block
from normscope.zoo.data.tensor_file import EXAMPLES

UNSIGNED_BYTE = 8


def opened(file: Path) -> IO[bytes]:
    """Open a file for reading bytes, decompressed if it is named so; one that may not be read is an InputError."""
    try:
        return gzip.open(file, "rb") if file.suffix == ".gz" else file.open("rb")  # type: ignore[return-value]
    except OSError as error:
        raise unreadable(file, EXAMPLES, error) from error


def _damaged(file: Path, reason: str) -> InputError:
    return InputError(f"{file} is not a valid idx file of bytes: {reason}. Download it again.")


def _read(stream: IO[bytes], count: int, file: Path) -> bytes:
    """Return exactly ``count`` bytes."""
    try:
        content = stream.read(count)
    except (EOFError, gzip.BadGzipFile, zlib.error, OSError) as error:
        raise _damaged(file, f"it cannot be decompressed ({error})") from error
    if len(content) < count:
        raise _damaged(file, f"it is truncated ({count - len(content)} bytes are missing)")
    return content


def read_shape(stream: IO[bytes], file: Path) -> tuple[int, ...]:
    """Read the header and return the shape of the array that follows.

    >>> import io
    >>> read_shape(io.BytesIO(bytes([0, 0, 8, 2, 0, 0, 0, 5, 0, 0, 0, 7])), Path("x"))
    (5, 7)
    """
    zero, kind, axes = struct.unpack(">HBB", _read(stream, 4, file))
    if zero != 0 or kind != UNSIGNED_BYTE or axes == 0:
        raise _damaged(file, f"its first bytes are {zero:#06x} {kind:#04x} {axes:#04x}")
    return struct.unpack(f">{axes}I", _read(stream, 4 * axes, file))


@dataclass(frozen=True)
class IdxImages:
    """Images (n, height, width) and labels (n,) in two idx files; ``shape`` is that of one image with its channel."""

    images: Path
    labels: Path
    labelled: bool = True
    count: int = field(init=False)
    shape: tuple[int, ...] = field(init=False)

    def __post_init__(self) -> None:
        with opened(self.images) as images, opened(self.labels) as labels:
            shape, marks = read_shape(images, self.images), read_shape(labels, self.labels)
        if len(shape) != 3:
            raise _damaged(self.images, f"expected three axes for images, got {len(shape)}")
        if marks != shape[:1]:
            raise InputError(
                f"Expected one label per image; {self.images} has {shape[0]} images, {self.labels} has shape {marks}. "
                "Download both again."
            )
        object.__setattr__(self, "count", shape[0])
        object.__setattr__(self, "shape", (1, *shape[1:]))

    def blocks(self, size: int) -> Iterator[Block]:
        """Yield images (n, 1, height, width) of bytes and their labels."""
        with opened(self.images) as images, opened(self.labels) as labels:
            count, *axes = read_shape(images, self.images)
            read_shape(labels, self.labels)
            for start in range(0, count, size):
                number = min(size, count - start)
                pixels = np.frombuffer(_read(images, number * math.prod(axes), self.images), dtype=np.uint8)
                marks = np.frombuffer(_read(labels, number, self.labels), dtype=np.uint8)
                yield (
                    torch.from_numpy(pixels.reshape(number, 1, *axes).copy()),
                    torch.from_numpy(marks.astype(np.int64)),
                )
