"""NS001: no graph, and still what modules tell."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found
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
    assert "not today" in next(f.message for f in result.findings if f.code == "NS001")
    assert result.skipped["NS101"] == "needs the model's graph"


def test_nothing_is_said_of_a_model_that_can_be_captured() -> None:
    """A linear layer."""
    assert found("NS001", nn.Linear(2, 2)) == []
