"""The user's module inside wrappers."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.core.errors import InputError
from normscope.monitor.training_objects import is_first_process, learning_rates, optimizers_of, unwrapped


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

        def __init__(self) -> None:
            super().__init__()
            self.module = nn.Linear(1, 1)

    with pytest.raises(InputError, match="Sharded models"):
        unwrapped(FullyShardedDataParallel())
    with pytest.raises(InputError, match="got function"):
        unwrapped(lambda x: x)  # type: ignore[arg-type]


def test_a_process_alone_is_the_first() -> None:
    assert is_first_process()


def test_groups_tensors_and_tied_names() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    model[1].weight = model[0].weight
    groups = [{"params": [model[0].weight], "lr": torch.tensor(0.5)}, {"params": [nn.Parameter(torch.zeros(1))]}]
    assert learning_rates(model, torch.optim.SGD(groups, lr=0.1)) == {"0.weight": 0.5, "1.weight": 0.5}
    assert learning_rates(model, object()) == {}
    assert learning_rates(model, torch.optim.SGD(groups, lr=0.1), 2.0)["2.weight"] == 2.0


def test_several_optimizers() -> None:
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    several = [torch.optim.SGD(layer.parameters(), lr=rate) for layer, rate in zip(model, (0.5, 0.25), strict=True)]
    assert learning_rates(model, several) == {"0.weight": 0.5, "1.weight": 0.25}
    assert optimizers_of(several) == optimizers_of(tuple(several)) == tuple(several)
    assert optimizers_of(None) == ()
    for wrong in ("sgd", [several[0], 3], {"a": several[0]}):
        with pytest.raises(InputError, match="has no param_groups"):
            optimizers_of(wrong)
