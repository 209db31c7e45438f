"""The restricted unpickler lets arrays in and runs nothing."""

from __future__ import annotations

import io
import os
import pickle
from pathlib import Path

import numpy as np
import pytest

from normscope.core.errors import InputError
from normscope.zoo.data.safe_pickle import load_arrays


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
@pytest.mark.parametrize("order", ["C", "F"])
def test_arrays_of_every_protocol_come_back(protocol: int, order: str) -> None:
    """With their containers, numbers, text and bytes."""
    array = np.asarray(np.arange(12, dtype=np.uint8).reshape(3, 4), order=order)
    content = {"data": array, "labels": [1, 2], "names": ["a", b"\xff"], "scale": 0.5}
    read = load_arrays(io.BytesIO(pickle.dumps(content, protocol)), "a file")
    np.testing.assert_array_equal(read["data"], array)
    assert (read["labels"], read["scale"], read["names"][1]) == ([1, 2], 0.5, b"\xff")


def test_a_pickle_of_python_2_is_read_as_bytes() -> None:
    """As in the files of CIFAR-10: short strings of protocol 2."""
    assert load_arrays(io.BytesIO(b"\x80\x02}q\x00U\x04dataK\x03s."), "a file") == {b"data": 3}


class Evil:
    """An object whose pickle calls something."""

    def __init__(self, function: object, *arguments: object) -> None:
        self.call = function, arguments

    def __reduce__(self):
        return self.call


def test_calls_are_refused_and_not_made(tmp_path: Path) -> None:
    """Whether hidden in a container or not; the message says what was asked for."""
    target = str(tmp_path / "made")
    for content in (Evil(os.mkdir, target), {"data": [Evil(os.mkdir, target)]}, Evil(eval, "1"), Evil(getattr, 1, "x")):
        with pytest.raises(InputError, match="Refused to unpickle"):
            load_arrays(io.BytesIO(pickle.dumps(content)), "a file")
    assert not Path(target).exists()


def test_subclasses_codecs_and_persistent_objects_are_refused() -> None:
    """The allowed names cannot be turned against their purpose."""
    matrix = b"cnumpy\nmatrix\n."
    subclass = b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\ndtype\nI0\ntS'b'\ntR."
    codec = b"c_codecs\nencode\n(S'abc'\nS'zlib'\ntR."
    persistent = b"P1\n."
    for stream in (matrix, subclass, codec, persistent):
        with pytest.raises(InputError, match="Refused"):
            load_arrays(io.BytesIO(stream), "a file")


def test_damaged_pickles_are_refused() -> None:
    """Cut anywhere, or not a pickle at all."""
    whole = pickle.dumps({"data": np.arange(100)})
    for length in range(0, len(whole) - 1, 7):
        with pytest.raises(InputError, match="Refused"):
            load_arrays(io.BytesIO(whole[:length]), "a file")
    with pytest.raises(InputError, match="Refused to unpickle a text"):
        load_arrays(io.BytesIO(b"hello"), "a text")
