"""The loss on a batch."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from normscope.core.errors import InputError
from normscope.graph.objective import class_scores, prediction, probe_loss

X = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))


def test_classes_give_cross_entropy() -> None:
    labels = torch.tensor([0, 2, 1, 1])
    assert torch.equal(probe_loss({"output": X}, labels), F.cross_entropy(X, labels))


def test_tokens_and_pixels_give_cross_entropy_over_all_places() -> None:
    tokens = X.reshape(2, 2, 3)
    labels = torch.tensor([[0, 2], [1, -100]])
    expected = F.cross_entropy(X, labels.flatten())
    assert torch.allclose(probe_loss({"logits": tokens, "hidden": X}, labels), expected)
    pixels = X.reshape(2, 2, 3).movedim(-1, 1)
    assert torch.allclose(probe_loss({"output": pixels}, labels), expected)


def test_numbers_give_the_mean_squared_error() -> None:
    target = torch.zeros(4, 3)
    assert torch.equal(probe_loss({"output": X}, target), F.mse_loss(X, target))


def test_the_models_own_loss_and_the_users_come_first() -> None:
    own = {"loss": torch.tensor(7.0), "logits": X}
    assert float(probe_loss(own, torch.tensor([0, 0, 0, 0]))) == 7.0
    mine = lambda out, labels: (out["logits"] * labels).sum()  # noqa: E731
    assert torch.equal(probe_loss(own, torch.tensor(2.0), mine), 2 * X.sum())
    assert torch.equal(probe_loss({"output": X}, None, lambda out: out.mean()), X.mean())
    with pytest.raises(InputError, match=r"one element|scalar metric"):
        probe_loss({"output": X}, None, lambda out: out)


def test_nothing_is_made_up() -> None:
    assert probe_loss({"output": X}, None) is None
    assert class_scores({"output": X}, torch.zeros(4)) is None
    assert class_scores({"output": X}, None) is None
    assert class_scores({"loss": torch.tensor(0.0), "logits": X.reshape(2, 2, 3)}, torch.zeros(2, 2).long()) is None


def test_scores_leave_out_places_without_a_label() -> None:
    scores, classes = class_scores({"output": X}, torch.tensor([0, -100, 2, 1]))
    assert torch.equal(scores, X[[0, 2, 3]])
    assert classes.tolist() == [0, 2, 1]
    assert class_scores({"output": X}, torch.tensor([0, 255, 2, 3]))[1].tolist() == [0, 2]  # there are three classes
    assert torch.equal(prediction({"loss": torch.tensor(0.0), "scores": X}), X)


@pytest.mark.parametrize("labels", [torch.zeros(2).long(), torch.zeros(7), torch.zeros(4, 3).long()])
def test_labels_that_fit_no_loss_are_refused(labels: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"output has shape \(4, 3\); the labels are"):
        probe_loss({"output": X}, labels)
    assert probe_loss({"output": X}, labels, lambda out, given: out.sum() + given.sum()) is not None


@pytest.mark.parametrize("wrong", [3, -1])
def test_class_numbers_without_a_score_are_refused(wrong: int) -> None:
    with pytest.raises(InputError, match=f"from 0 to 2, since the output has scores of 3 classes; got {wrong}"):
        probe_loss({"output": X}, torch.tensor([0, wrong, 1, -100]))
    with pytest.raises(InputError, match=f"got {wrong}"):
        probe_loss({"output": X.reshape(2, 2, 3).movedim(-1, 1)}, torch.tensor([[0, wrong], [1, 1]]))


def test_a_complex_loss_is_refused() -> None:
    with pytest.raises(InputError, match="complex"):
        probe_loss({"output": X}, None, lambda out: out.sum() * 1j)


def test_double_precision_is_kept() -> None:
    double = X.double()
    assert probe_loss({"output": double}, torch.tensor([0, 2, 1, 1])).dtype == torch.float64
    assert probe_loss({"output": double}, torch.zeros(4, 3)).dtype == torch.float64
