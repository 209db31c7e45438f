"""Loading what a user names: the model, its data, and the shape where there are none."""

from __future__ import annotations

import pytest

from normscope.cli.loading import Named, load
from normscope.core.errors import ModelNotFoundError

MLP = "zoo:mlp[in_features=64,hidden=[4]]"


def _named(model: str, data: str | None = None, shape: tuple[int, ...] | None = None) -> Named:
    return Named(model, None, data, None, "test", 5, None, shape)


def test_a_network_of_the_zoo_knows_its_shape() -> None:
    """Unless one is named, or there are data."""
    said: list[str] = []
    loaded = load(_named(MLP), 0, said.append)
    assert loaded.shape == (1, 8, 8)
    assert loaded.inputs is None
    assert said == ["loading the model"]
    assert load(_named(MLP, shape=(64,)), 0, said.append).shape == (64,)


def test_data_are_iterated_as_often_as_wanted_without_labels() -> None:
    """As many as asked for."""
    said: list[str] = []
    loaded = load(_named(MLP, "digits"), 0, said.append)
    assert loaded.inputs is not None
    assert [len(batch) for _ in range(2) for batch in loaded.inputs] == [5, 5]
    assert loaded.shape is None
    assert said[-1] == "loading the data"


def test_what_is_not_there_is_told() -> None:
    """By the loader of models."""
    with pytest.raises(ModelNotFoundError):
        load(_named("zoo:nothing"), 0, lambda text: None)


def test_onnx_files_are_not_read() -> None:
    """And what to name instead is said."""
    named = Named("nets/x.ONNX", None, None, None, "test", None, None, None)
    with pytest.raises(ModelNotFoundError, match=r"ONNX files are not read; got nets/x.ONNX; name the PyTorch model"):
        load(named, 0, lambda text: None)
