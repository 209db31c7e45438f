"""The cache: what comes back is what went in, and nothing that goes wrong in it is seen outside."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.graph import cache
from normscope.graph.cache import attach, cached, folder, load, store
from normscope.graph.export import export_graph
from normscope.graph.interpreter import run
from normscope.graph.ir import Graph, Node, Ref


class Scaled(nn.Module):
    """A model with parameters, buffers and a constant."""

    def __init__(self, factor: float = 2.0) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.norm = nn.BatchNorm1d(3)
        self.factor = torch.tensor([factor, 1.0, 3.0])

    def forward(self, *inputs: Tensor) -> tuple[Tensor, ...]:
        """Run the model."""
        return (self.norm(self.linear(inputs[0])) * self.factor + torch.arange(3),)


X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the cache into a folder of its own."""
    where = tmp_path / "deep" / "graphs"
    monkeypatch.setenv("NORMSCOPE_CACHE", str(where))
    return where


class Counter:
    """A capture that counts how often it is asked."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.calls = 0

    def __call__(self) -> tuple[Graph, dict[str, Tensor]]:
        """Capture the model."""
        self.calls += 1
        return export_graph(self.model, (X,), dynamic=False)


def _one(key: str = "k", **changes: Any) -> tuple[str, Graph, dict[str, Tensor]]:
    nodes = (Node("c", "constant", target="c", shape=(2,), dtype="float32"), Node("output", "output", (Ref("c"),)))
    return key, Graph(nodes, **changes), {"c": torch.tensor([1.0, 2.0])}


def test_a_second_capture_comes_from_the_cache(place: Path) -> None:
    """With the weights of the model it is asked for, not of the one it was captured from."""
    first = Scaled().eval()
    counter = Counter(first)
    graph, tensors = cached(first, (X,), counter)
    second = Scaled().eval()
    again, others = cached(second, (X,), counter)
    assert counter.calls == 1
    assert again == graph
    assert others["linear.weight"] is second.linear.weight
    with torch.no_grad():
        assert torch.equal(run(graph, tensors, [X])[0], first(X)[0])
        assert torch.equal(run(again, others, [X])[0], second(X)[0])
    assert len(list(place.iterdir())) == 1


def test_another_constant_is_another_graph(place: Path) -> None:
    """Another constant is another graph."""
    for factor in (1.0, 5.0, 1.0):
        model = Scaled(factor).eval()
        graph, tensors = cached(model, (X,), Counter(model))
        with torch.no_grad():
            assert torch.equal(run(graph, tensors, [X])[0], model(X)[0])
    assert len(list(place.iterdir())) == 2


def test_a_model_without_key_is_captured_each_time(place: Path) -> None:
    """A model without key is captured each time."""
    model = Scaled().eval()
    model.odd = (i for i in range(3))  # type: ignore[assignment]
    counter = Counter(model)
    cached(model, (X,), counter)
    cached(model, (X,), counter)
    assert counter.calls == 2
    assert not place.exists()


def test_what_changes_while_it_is_captured_is_not_kept(place: Path) -> None:
    """A key taken before does not cover what running the model brought in."""
    model = Scaled().eval()

    def capture() -> tuple[Graph, dict[str, Tensor]]:
        model.note = "changed"  # type: ignore[assignment]
        return export_graph(model, (X,), dynamic=False)

    cached(model, (X,), capture)
    assert not place.exists()


def test_recorded_graphs_are_not_kept(place: Path) -> None:
    """Recorded graphs are not kept."""
    store(*_one(front_end="dispatch"))
    assert load("k") is None
    store(*_one())
    found = load("k")
    assert found is not None
    assert found[0] == _one()[1]
    assert torch.equal(found[1]["c"], _one()[2]["c"])


@pytest.mark.parametrize("harm", ["empty", "cut", "text", "flipped", "renamed", "folder"])
def test_a_damaged_file_is_a_miss(place: Path, harm: str) -> None:
    """And the next store mends it."""
    store(*_one())
    (file,) = place.iterdir()
    content = bytearray(file.read_bytes())
    if harm == "empty":
        file.write_bytes(b"")
    elif harm == "cut":
        file.write_bytes(content[:-3])
    elif harm == "text":
        file.write_bytes(b"not a graph")
    elif harm == "flipped":
        content[-1] ^= 1
        file.write_bytes(content)
    elif harm == "renamed":
        file.write_bytes(bytes(content).replace(b"dynamic", b"dynamoc"))
    else:
        file.unlink()
        file.mkdir()
    assert load("k") is None
    if harm != "folder":
        store(*_one())
        assert load("k") is not None


def test_another_format_is_a_miss(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another format is a miss."""
    store(*_one())
    monkeypatch.setattr("normscope.graph.ir.FORMAT", 99)
    assert load("k") is None


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A place that cannot be written is no error."""
    occupied = tmp_path / "file"
    occupied.write_text("in the way")
    monkeypatch.setenv("NORMSCOPE_CACHE", str(occupied))
    model = Scaled().eval()
    counter = Counter(model)
    cached(model, (X,), counter)
    cached(model, (X,), counter)
    assert counter.calls == 2
    monkeypatch.setenv("NORMSCOPE_CACHE", "")
    assert folder() is None
    store(*_one())
    assert load("k") is None


def test_a_failed_write_leaves_nothing(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failed write leaves nothing."""

    def fail(*args: Any, **kwargs: Any) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(cache, "save_file", fail)
    store(*_one())
    assert list(place.iterdir()) == []


def test_the_number_of_files_is_bounded(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The files not used for longest go first; reading one counts as use."""
    monkeypatch.setattr(cache, "LIMIT", 3)
    for i in range(3):
        store(*_one(f"k{i}"))
        os.utime(place / f"k{i}.safetensors", (1000 + i, 1000 + i))
    left_behind = place / "old.tmp"
    left_behind.write_bytes(b"")
    os.utime(left_behind, (1, 1))
    assert load("k0") is not None
    store(*_one("k3"))
    assert sorted(p.stem for p in place.iterdir()) == ["k0", "k2", "k3"]


def test_large_constants_are_not_kept(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Large constants are not kept."""
    monkeypatch.setattr(cache, "MOST_BYTES", 7)
    store(*_one())
    assert load("k") is None


def test_tensors_must_fit_the_graph() -> None:
    """Tensors must fit the graph."""
    node = Node("w", "parameter", target="weight", shape=(2, 3), dtype="float32")
    graph = Graph((node, Node("output", "output", (Ref("w"),))))
    assert attach(graph, nn.Linear(3, 2), {}) is not None
    assert attach(graph, nn.Linear(4, 2), {}) is None
    assert attach(graph, nn.Linear(3, 2).double(), {}) is None
    assert attach(graph, nn.ReLU(), {}) is None


def test_the_folder_of_each_platform(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The folder of each platform."""
    monkeypatch.delenv("NORMSCOPE_CACHE", raising=False)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    for name in ("XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)
    expected = {"linux": ".cache", "darwin": "Library/Caches", "win32": "AppData/Local"}
    for platform, inside in expected.items():
        monkeypatch.setattr("sys.platform", platform)
        assert folder() == tmp_path / inside / "normscope" / "graphs"


def test_a_user_without_a_home_has_no_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a container whose user is a bare number: the graph is captured each time."""
    for name in ("NORMSCOPE_CACHE", "XDG_CACHE_HOME", "LOCALAPPDATA"):
        monkeypatch.delenv(name, raising=False)

    def homeless() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", homeless)
    for platform in ("darwin", "win32", "linux"):
        monkeypatch.setattr(cache.sys, "platform", platform)
        assert folder() is None
    model = Scaled().eval()
    captured = Counter(model)
    cached(model, (X,), captured)
    assert captured.calls == 1
