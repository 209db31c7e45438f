"""NS107: softmax over one entry."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found, noise
from networks import Lambda
from normscope.core.finding import Severity


def _pooled(axis: int) -> nn.Module:
    def forward(s: Lambda, x: Tensor) -> Tensor:
        return (s.score(x).softmax(axis) * x).sum(1)

    return nn.Sequential(Lambda(forward, score=nn.Linear(6, 1)))


def test_the_axis_of_one_score_instead_of_that_of_tokens() -> None:
    """Then the scores have no gradient."""
    for axis, told in ((-1, 1), (1, 0)):
        model, x = _pooled(axis), noise(4, 5, 6)
        assert len(found("NS107", model, x)) == told
        (gradient,) = torch.autograd.grad(model(x).square().sum(), model[0].score.weight)
        assert (float(gradient.abs().max()) < 1e-6) is bool(told)


def test_a_sequence_of_one_token_is_a_remark_and_samples_are_none() -> None:
    """The axis is the right one, there is only nothing along it."""
    assert [f.severity for f in found("NS107", _pooled(1), noise(4, 1, 6))] == [Severity.INFO]
    assert found("NS107", nn.Softmax(0), noise(1, 6)) == []
    (one,) = found("NS107", nn.Sequential(nn.Linear(6, 1), nn.LogSoftmax(1)), noise(4, 6))
    assert (one.place, one.severity) == ("1", Severity.WARNING)
    assert "every result is 0" in one.message
