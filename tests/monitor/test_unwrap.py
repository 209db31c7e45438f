"""The user's module inside wrappers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.monitor.unwrap import is_first_process, unwrapped


def test_wrappers_are_looked_through_in_any_order() -> None:
    inner = nn.Linear(2, 2)
    assert unwrapped(inner) is inner
    assert unwrapped(torch.compile(inner)) is inner
    assert unwrapped(nn.DataParallel(torch.compile(inner))) is inner
    assert unwrapped(torch.compile(nn.DataParallel(inner))) is inner


def test_a_user_module_called_module_is_not_a_wrapper() -> None:
    class Mine(nn.Module):
        """Holds a part under the name wrappers use."""

        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(2, 2)

    mine = Mine()
    assert unwrapped(mine) is mine


def test_sharded_models_and_other_things_are_refused() -> None:
    class FullyShardedDataParallel(nn.Module):
        """Stands for torch's, which needs several processes."""

    with pytest.raises(InputError, match="Sharded models"):
        unwrapped(FullyShardedDataParallel())
    with pytest.raises(InputError, match="got function"):
        unwrapped(lambda x: x)  # type: ignore[arg-type]


def test_a_process_alone_is_the_first() -> None:
    assert is_first_process()
