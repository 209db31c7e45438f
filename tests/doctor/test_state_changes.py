"""What a forward pass leaves behind."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import noise
from normscope.doctor.state_changes import changed_by_forward, random_part
from normscope.graph.inputs import ModelInputs


class FirstBatch(nn.Module):
    """A scale that is set from the first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(3))
        self.ready = False

    def forward(self, x: Tensor) -> Tensor:
        """Scale."""
        if not self.ready:
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0))
            self.ready = True
        return self.scale * x


def test_attributes_and_parameters_are_named_and_put_back() -> None:
    """As they were before."""
    model = nn.Sequential(FirstBatch(), nn.BatchNorm1d(3)).train()
    assert set(changed_by_forward(model, ModelInputs((noise(8, 3),)))) == {"0.scale", "0.ready"}
    assert model[0].scale.tolist() == [1.0, 1.0, 1.0]
    assert model[0].ready is False
    assert model.training
    assert model[1].training


def test_nothing_of_a_plain_model_or_one_that_raises() -> None:
    """Nothing is changed, or nothing is known."""
    assert changed_by_forward(nn.Linear(3, 2), ModelInputs((noise(4, 3),))) == ()
    assert changed_by_forward(nn.Linear(3, 2), ModelInputs((noise(4, 5),))) == ()


def test_the_part_that_is_random() -> None:
    """Not the ones that read it; nothing of a network without any, and the generator is as before."""
    inner = nn.Sequential(nn.Linear(3, 3), nn.Dropout(0.5))
    model = nn.Sequential(nn.Linear(3, 3), inner, nn.Linear(3, 2))
    assert random_part(model, ModelInputs((noise(8, 3),))) == ""  # in evaluation dropout does nothing
    inner[1].forward = lambda x: nn.functional.dropout(x, 0.5)  # type: ignore[method-assign]
    before = torch.get_rng_state()
    assert random_part(model, ModelInputs((noise(8, 3),))) == "1.1"
    assert torch.equal(before, torch.get_rng_state())
    assert not inner[1]._forward_hooks
