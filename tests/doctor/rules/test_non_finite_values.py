"""NS002: NaN and infinity in weights and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from checking import found, noise
from networks import Lambda
from normscope.core.finding import Severity


def test_a_nan_in_a_weight() -> None:
    """The message names it."""
    model = nn.Linear(2, 2)
    with torch.no_grad():
        model.bias[1] = float("nan")
    (one,) = found("NS002", model)
    assert one.severity is Severity.ERROR
    assert "bias has 1 NaN" in one.message


def test_a_value_that_is_not_finite_on_the_data() -> None:
    """Zero divided by zero before a normalizer."""
    model = Lambda(lambda s, x: s.norm(x / x.abs()), norm=nn.LayerNorm(2))
    assert len(found("NS002", model, torch.zeros(3, 2))) == 1
    assert found("NS002", model, torch.ones(3, 2)) == []


def test_a_running_variance_of_zero_without_eps() -> None:
    """The buffer and its channel are named, also where the output is infinite and not NaN."""
    model = nn.Sequential(
        Lambda(lambda s, x: (x - s.running_mean) * s.running_var.rsqrt(), running_mean=torch.zeros(3),
               running_var=torch.tensor([1.0, 2.0, 0.0])),
        nn.Linear(3, 2),
    )  # fmt: skip
    (one,) = found("NS002", model, noise(16, 3))
    assert one.place == "0"
    assert "0.running_var is zero at channel 2, and no eps is added" in one.message
    assert "estimate the statistics again" in one.fix
    model[0].running_var[2] = 1.0
    assert found("NS002", model, noise(16, 3)) == []


def test_minus_infinity_that_is_meant() -> None:
    """Logits of what must not be chosen."""
    model = Lambda(lambda s, x: s.fc(x).masked_fill(s.mask, -torch.inf), fc=nn.Linear(2, 3),
                   mask=torch.tensor([False, True, False]))  # fmt: skip
    assert found("NS002", model, noise(8, 2)) == []


def test_a_row_that_is_masked_as_a_whole() -> None:
    """NaN of a softmax that is given minus infinity only; one entry that is left is enough."""

    def forward(s: Lambda, x: Tensor) -> Tensor:
        scores = s.fc(x).masked_fill(x[..., :1] * s.seen < 0, -torch.inf)
        return s.norm(scores.softmax(-1))

    seen = torch.ones(4)
    model = nn.Sequential(Lambda(forward, fc=nn.Linear(4, 4), norm=nn.LayerNorm(4), seen=seen))
    (one,) = found("NS002", model, noise(8, 4))
    assert one.place == "0"
    assert "softmax turns infinities written by masked_fill in 0 into NaN" in one.message
    assert "masked" in one.fix
    model[0].seen[2] = 0.0
    assert found("NS002", model, noise(8, 4)) == []


def test_zero_times_the_logarithm_of_zero() -> None:
    """An entropy without a clamp."""
    model = nn.Sequential(Lambda(lambda s, x: -(x.relu() * x.relu().log()).sum(-1)))
    (one,) = found("NS002", model, noise(8, 4))
    assert (one.place, "mul turns infinities written by log in 0 into NaN" in one.message) == ("0", True)
