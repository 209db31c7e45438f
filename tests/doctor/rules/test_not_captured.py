"""NS001: no graph, and still what modules tell."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from checking import found, noise
from normscope.core.finding import Severity
from normscope.doctor import check


class Stubborn(nn.Module):
    """A network that does not run on anything."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        """Refuse."""
        raise RuntimeError("not today")


def test_the_reason_is_told_and_modules_are_still_checked() -> None:
    """BatchNorm in train mode, and decay, need no graph."""
    model = Stubborn().eval()
    model.norm.train()
    result = check(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.1))
    codes = [f.code for f in result.findings]
    assert codes.count("NS001") == 1
    assert {"NS204", "NS401"} <= set(codes)
    (one,) = (f for f in result.findings if f.code == "NS001")
    assert one.message.startswith("only the modules were checked, as there is no graph. ")
    assert "not today" in one.message
    assert result.skipped["NS101"] == "needs the model's graph"


def test_nothing_is_said_of_a_model_that_can_be_captured() -> None:
    """A linear layer."""
    assert found("NS001", nn.Linear(2, 2)) == []


class FirstBatch(nn.Module):
    """A layer that counts its calls and may set its scale from the first batch."""

    def __init__(self, *, learns: bool) -> None:
        super().__init__()
        self.scale, self.calls, self.learns = nn.Parameter(torch.ones(4)), 0, learns

    def forward(self, x: Tensor) -> Tensor:
        """Scale."""
        if self.calls == 0 and self.learns:
            with torch.no_grad():
                self.scale.copy_(1 / x.std(0))
        self.calls += 1
        return self.scale * x * min(self.calls, 3)


@pytest.mark.parametrize("learns", [True, False])
def test_a_forward_pass_that_changes_the_model_is_told_at_the_module(learns: bool) -> None:
    """With what it changes; overwritten parameters are an error, and all is put back."""
    model = nn.Sequential(nn.Linear(4, 4), FirstBatch(learns=learns)).eval()
    (one,) = found("NS001", model, noise(8, 4))
    assert (one.place, one.severity) == ("1", Severity.ERROR if learns else Severity.WARNING)
    assert "1.calls" in one.message
    assert ("overwrites 1.scale" in one.message) is learns
    assert model[1].scale.tolist() == [1.0] * 4
    assert model[1].calls == 0


def test_dropout_that_acts_in_evaluation_is_told_at_its_module() -> None:
    """The functional form drops unless it is told not to."""

    class Dropping(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(x, 0.5)

    model = nn.Sequential(nn.Linear(4, 4), nn.Dropout(), nn.Sequential(Dropping()), nn.Linear(4, 2)).eval()
    (one,) = found("NS001", model, noise(8, 4))
    assert one.place == "2.0"
    assert "random" in one.message
    assert not torch.equal(model(noise(8, 4)), model(noise(8, 4)))
