"""NS102: normalizers next to each other."""

from __future__ import annotations

import torch
from torch import nn

from checking import found, initialized, noise, places
from networks import Lambda
from normscope.core.finding import Certainty, Severity


def test_two_layer_norms_are_told() -> None:
    """Removing the first changes nothing, as the outputs say too."""
    first, second = nn.LayerNorm(6), nn.LayerNorm(6)
    (one,) = found("NS102", nn.Sequential(first, second, nn.Linear(6, 2)), noise(4, 6))
    assert (one.place, one.evidence["first_removable"], one.certainty) == ("0", "yes", Certainty.PROVED)
    x = noise(4, 6, seed=1) * 100
    assert torch.allclose(second(first(x)), second(x), atol=1e-4)


def test_a_first_one_with_a_scale_of_its_own_is_not_removable() -> None:
    """Scales that differ within a group survive."""
    first = nn.LayerNorm(6)
    with torch.no_grad():
        first.weight.copy_(torch.arange(1.0, 7.0))
    (one,) = found("NS102", nn.Sequential(first, nn.LayerNorm(6)), noise(4, 6))
    assert (one.evidence["first_removable"], one.certainty) == ("no", Certainty.LIKELY)


def test_batch_norm_twice_whatever_the_scale() -> None:
    """Channel by channel, scale and shift go."""
    first = nn.BatchNorm2d(4)
    with torch.no_grad():
        first.weight.copy_(torch.tensor([2.0, 0.5, 3.0, 1.0]))
        first.bias.copy_(torch.tensor([2.0, 0.5, 3.0, 1.0]))
    (one,) = found("NS102", nn.Sequential(first, nn.BatchNorm2d(4)).eval(), noise(4, 4, 5, 5))
    assert one.evidence["first_removable"] == "yes"


def test_dropout_between_is_noticed() -> None:
    """What is left after it is no longer centred."""
    model = nn.Sequential(nn.LayerNorm(6), nn.Dropout(0.5), nn.LayerNorm(6)).eval()
    (one,) = found("NS102", model, noise(4, 6))
    assert one.evidence["first_removable"] == "no"


def test_what_stands_between_is_not_told_and_beside_is_a_remark() -> None:
    """A linear layer, a ReLU, a way around."""
    for between in (nn.Linear(6, 6), nn.ReLU()):
        model = initialized(nn.Sequential(nn.LayerNorm(6), between, nn.LayerNorm(6)))
        assert places("NS102", model, noise(4, 6)) == []
    around = Lambda(lambda s, x: s.b(s.a(x)) + s.a(x), a=nn.LayerNorm(6), b=nn.LayerNorm(6))
    shared = Lambda(lambda s, x: (lambda y: s.b(y) + y)(s.a(x)), a=nn.LayerNorm(6), b=nn.LayerNorm(6))
    (beside,) = found("NS102", shared, noise(4, 6))
    assert (beside.place, beside.severity) == ("a", Severity.INFO)  # normalized twice on one of its two ways
    assert places("NS102", around, noise(4, 6)) == ["a"]  # called twice: one of the two is followed by the other
