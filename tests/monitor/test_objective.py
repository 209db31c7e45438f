"""The loss on the probe."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from normscope.core.errors import InputError
from normscope.monitor.objective import (
    OwnNumbers,
    class_scores,
    on_accelerator,
    one_number,
    prediction,
    probe_loss,
    waiting,
)

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
    assert torch.equal(prediction({"loss": torch.tensor(0.0), "scores": X}), X)


def test_metrics_are_single_numbers() -> None:
    assert one_number(torch.tensor(2, dtype=torch.int64)) == 2.0
    assert one_number(3) == 3.0
    assert not on_accelerator(torch.zeros(1))
    with pytest.raises(InputError, match="tensor of shape"):
        one_number(torch.zeros(2))
    with pytest.raises(InputError, match=r"one element|scalar metric"):
        one_number("a lot")


@pytest.mark.parametrize("labels", [torch.zeros(2).long(), torch.zeros(7), torch.zeros(4, 3).long()])
def test_labels_that_fit_no_loss_are_refused(labels: torch.Tensor) -> None:
    with pytest.raises(InputError, match=r"output has shape \(4, 3\) and the labels are"):
        probe_loss({"output": X}, labels)
    assert probe_loss({"output": X}, labels, lambda out, given: out.sum() + given.sum()) is not None


@pytest.mark.parametrize("wrong", [3, -1])
def test_class_numbers_without_a_score_are_refused(wrong: int) -> None:
    with pytest.raises(InputError, match=f"3 classes, numbered from 0, and the labels of the probe hold {wrong}"):
        probe_loss({"output": X}, torch.tensor([0, wrong, 1, -100]))
    with pytest.raises(InputError, match=f"hold {wrong}"):
        probe_loss({"output": X.reshape(2, 2, 3).movedim(-1, 1)}, torch.tensor([[0, wrong], [1, 1]]))


def test_numbers_that_wait_are_checked_at_once() -> None:
    kept = waiting(torch.tensor([1.5], requires_grad=True))
    assert isinstance(kept, torch.Tensor)
    assert not kept.requires_grad
    for value in (torch.zeros(2), "a lot"):
        with pytest.raises(InputError, match=r"one element|scalar metric"):
            waiting(value)


def test_complex_numbers_are_refused() -> None:
    for value in (torch.tensor(1 + 1j), torch.tensor([2 + 0j]), 3j):
        for read in (one_number, waiting):
            with pytest.raises(InputError, match=r"one element|scalar metric|real"):
                read(value)
    with pytest.raises(InputError, match="complex"):
        probe_loss({"output": X}, None, lambda out: out.sum() * 1j)


def test_the_last_of_each_name_waits_with_its_step() -> None:
    own = OwnNumbers()
    own.keep(3, {"accuracy": 0.5, "loss": torch.tensor(2.0)})
    own.keep(4, {"loss": torch.tensor([1.0])})
    assert bool(own)
    assert own.at_hand()
    assert own.taken() == {3: {"train/accuracy": 0.5}, 4: {"train/loss": 1.0}}
    assert not own
    assert own.taken() == {}


@pytest.mark.parametrize("bad", [torch.zeros(2), 1j, torch.tensor(1 + 2j), torch.tensor(1 + 0j), "much"])
def test_what_is_no_real_number_is_refused_and_nothing_kept(bad: object) -> None:
    own = OwnNumbers()
    with pytest.raises(InputError, match=r"scalar metric|real metric"):
        own.keep(1, {"loss": 1.0, "other": bad})
    assert not own
