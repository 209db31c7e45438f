"""Scores of labelled data: one pass, kept on disk, a random part of the inputs, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from normscope.analysis.bounds.scores import (
    Scores,
    class_scores,
    fingerprint,
    fingerprint_of_data,
    labelled,
    scored,
    stored,
)
from normscope.core.errors import InputError
from normscope.generalization import grid, voronoi

from .conftest import captured_of


def _quiet(text: str) -> None:
    pass


def test_one_pass(trained: Any) -> None:
    """The scores of the model, its errors, the cells and norms of the inputs."""
    model, (x, y), _ = trained
    captured = captured_of(model, 4, 2)
    found = scored(captured, (x, y), "train", grid([0, 0], [1, 1], [3, 3]), 0, _quiet)
    with torch.no_grad():
        true = model(x)
    assert torch.allclose(found.outputs, true, atol=1e-5)
    assert found.errors == int((true.argmax(1) != y).sum())
    assert found.square == pytest.approx(float(x.double().square().sum()))
    assert found.largest == pytest.approx(float(x.max()))
    assert (found.samples, found.classes) == (800, 2)
    assert found.cells.tolist() == grid([0, 0], [1, 1], [3, 3]).assign(x).tolist()
    assert torch.equal(found.some, x[found.chosen])
    assert sorted(found.chosen.tolist()) == list(range(800))
    loader = [(x[:300], y[:300]), (x[300:], y[300:])]
    assert torch.allclose(scored(captured, loader, "train", None, 0, _quiet).outputs, found.outputs, atol=1e-5)


def test_kept_on_disk(tmp_path: Path, trained: Any) -> None:
    """The second time nothing is run."""
    model, (x, y), _ = trained
    captured = captured_of(model, 4, 2)
    first = stored(tmp_path / "new", "a", lambda: scored(captured, (x, y), "train", None, 0, _quiet))

    def never() -> Scores:
        raise AssertionError

    second = stored(tmp_path / "new", "a", never)
    assert all(
        torch.equal(a, b) if isinstance(a, torch.Tensor) else a == b
        for a, b in zip(vars(first).values(), vars(second).values(), strict=True)
    )


def test_fingerprint_sees_every_number(trained: Any) -> None:
    """Another weight, another name."""
    captured = captured_of(trained[0], 4, 2)
    first = fingerprint(captured.tensors, "x")
    name = next(n for n, t in captured.tensors.items() if t.is_floating_point())
    captured.tensors[name] = captured.tensors[name] + 1e-6
    assert fingerprint(captured.tensors, "x") != first
    assert fingerprint(captured.tensors, "y") != fingerprint(captured.tensors, "x")


def test_data_have_names(trained: Any) -> None:
    """Other data of the same size: another name, so nothing stale is read."""
    _, (x, y), _ = trained
    assert fingerprint_of_data((x, y), "train") == fingerprint_of_data((x.clone(), y), "train")
    assert fingerprint_of_data((x, y), "train") != fingerprint_of_data((x + 1e-3, y), "train")
    assert fingerprint_of_data((x, y), "train") != fingerprint_of_data((x, 1 - y), "train")
    assert fingerprint_of_data((x, y), "train") != fingerprint_of_data((x[:-1], y[:-1]), "train")
    first, second = (voronoi(torch.full((1, 2), v), [0, 0], [1, 1]) for v in (0.1, 0.2))
    assert fingerprint(first.name, first.centres) != fingerprint(second.name, second.centres)


def test_cells_from_the_data_are_noticed(trained: Any) -> None:
    """A centre that is a sample."""
    model, (x, y), _ = trained
    seen = voronoi(x[:3], [0, 0], [1, 1])
    found = scored(captured_of(model, 4, 2), (x, y), "train", seen, 0, _quiet)
    assert "before seeing the data" in found.refusal


@pytest.mark.parametrize(
    ("labels", "words"),
    [
        (torch.rand(8), "classification"),
        (torch.zeros(8, 2).long(), "classification"),
        (torch.full((8,), 9), "from 0 to 1"),
    ],
)
def test_labels_are_classes(trained: Any, labels: torch.Tensor, words: str) -> None:
    """Real targets, targets per pixel, labels out of range."""
    with pytest.raises(InputError, match=words):
        scored(captured_of(trained[0], 4, 2), (torch.rand(8, 2), labels), "train", None, 0, _quiet)


def test_outputs_are_scores() -> None:
    """A network with images out is no classifier."""
    captured = captured_of(nn.Conv2d(1, 2, 1), 2, 1, 4, 4)
    with pytest.raises(InputError, match="classifiers"):
        class_scores(captured, captured.tensors, torch.rand(2, 1, 4, 4))


def test_no_labels_and_no_data(trained: Any) -> None:
    """Said in one line."""
    captured = captured_of(trained[0], 4, 2)
    with pytest.raises(InputError, match="need labels"):
        list(labelled([torch.rand(3, 2)], "test"))
    with pytest.raises(InputError, match="as many labels"):
        list(labelled((torch.rand(3, 2), torch.zeros(2).long()), "test"))
    with pytest.raises(InputError, match="empty"):
        scored(captured, [], "test", None, 0, _quiet)
