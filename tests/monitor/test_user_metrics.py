"""The user's own numbers wait with their step until they are written."""

from __future__ import annotations

import pytest
import torch

from normscope.core.errors import InputError
from normscope.monitor.user_metrics import OwnNumbers


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
