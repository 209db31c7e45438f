"""One number out of what a user logs."""

from __future__ import annotations

import pytest
import torch

from normscope.core.errors import InputError
from normscope.monitor.user_metrics import UserMetrics, deferred, on_accelerator, one_number


def test_metrics_are_single_numbers() -> None:
    assert one_number(torch.tensor(2, dtype=torch.int64)) == 2.0
    assert one_number(3) == 3.0
    assert not on_accelerator(torch.zeros(1))
    with pytest.raises(InputError, match="tensor of shape"):
        one_number(torch.zeros(2))
    with pytest.raises(InputError, match=r"one element|scalar metric"):
        one_number("a lot")


def test_numbers_that_wait_are_checked_at_once() -> None:
    assert deferred(torch.tensor([1.5], requires_grad=True)) == 1.5
    assert isinstance(deferred(torch.zeros(1, device="meta")), torch.Tensor)  # read when it is written
    for value in (torch.zeros(2), "a lot"):
        with pytest.raises(InputError, match=r"one element|scalar metric"):
            deferred(value)


def test_complex_numbers_are_refused() -> None:
    for value in (torch.tensor(1 + 1j), torch.tensor([2 + 0j]), 3j):
        for read in (one_number, deferred):
            with pytest.raises(InputError, match=r"one element|scalar metric|real"):
                read(value)


def test_every_number_waits_with_its_step() -> None:
    own = UserMetrics()
    loss = torch.tensor(2.0)
    own.keep(3, {"accuracy": 0.5, "loss": loss})
    loss.fill_(1.0)  # a sum that is kept up to date
    own.keep(4, {"loss": loss})
    assert own.latest() == {"train/accuracy": 0.5, "train/loss": 1.0}
    assert bool(own)
    assert own.is_ready()
    assert own.pop_all() == {3: {"train/accuracy": 0.5, "train/loss": 2.0}, 4: {"train/loss": 1.0}}
    assert not own
    assert own.pop_all() == {}


@pytest.mark.parametrize("bad", [torch.zeros(2), 1j, torch.tensor(1 + 2j), torch.tensor(1 + 0j), "much"])
def test_what_is_no_real_number_is_refused_and_nothing_kept(bad: object) -> None:
    own = UserMetrics()
    with pytest.raises(InputError, match=r"scalar metric|real metric"):
        own.keep(1, {"loss": 1.0, "other": bad})
    assert not own
