"""Which data an analysis reads: of the example's shape, in whole batches where the batch is the input."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

import normscope
from fuzzing.draw import Draw
from networks import Lambda, LambdaOfTwo, points, seeded
from normscope.core.errors import InputError


def _summed() -> nn.Module:
    """Return a network whose constant grows with the length of a sample."""
    return seeded(Lambda(lambda s, x: s.l(x).sum(1), l=nn.Linear(8, 3)))


def test_samples_of_other_shapes_are_told_and_left_out() -> None:
    """The certificate is for the first sample's shape, and says so; what is attained is attained there."""
    data = [Draw(n).tensor(n, 8) for n in (2, 9, 30)]
    result = normscope.analyze(_summed(), DataLoader(data, batch_size=1))
    for name in ("global", "lower_everywhere"):
        assert result.end_to_end[name].domain == "inputs of shape 2x8"  # type: ignore[union-attr]
    assert any("9x8, 30x8" in text for text in result.messages)
    assert not any("differentiated" in text for text in result.messages)
    assert result.end_to_end["lower_everywhere"].value <= result.end_to_end["global"].value  # type: ignore[union-attr]
    assert result.statistics["samples"] == 1


def test_an_endless_stream_of_other_shapes_ends_at_the_limit() -> None:
    """What is read counts, whether it is used or not."""

    def stream() -> Iterator[Tensor]:
        yield Draw(0).tensor(2, 3, 8)
        while True:
            yield Draw(1).tensor(2, 4, 8)

    result = normscope.analyze(_summed(), stream(), limit=10, points=1, ascent=0)
    assert result.statistics["samples"] == 2
    assert result.end_to_end["global"].domain == "inputs of shape 3x8"  # type: ignore[union-attr]


def test_what_is_no_batch_is_not_cut() -> None:
    """A matrix beside the samples has its own first axis: it is one for all of them."""
    model = seeded(LambdaOfTwo(lambda s, x, y: s.l(x) @ y.tanh(), l=nn.Linear(4, 6)))
    result = normscope.analyze(model, (Draw(0).tensor(3, 4), Draw(1).tensor(6, 6)), points=1, ascent=0)
    upper, lower = result.end_to_end["variance_floor"], result.end_to_end["lower"]
    assert upper is not None
    assert lower is not None
    assert 0.0 < lower.value <= upper.value < math.inf


def test_samples_of_one_shape_need_no_word() -> None:
    """All inputs, as ever."""
    result = normscope.analyze(_summed(), Draw(1).tensor(5, 9, 8), points=1, ascent=0)
    assert result.end_to_end["global"].domain == "all inputs"  # type: ignore[union-attr]


def test_a_batch_of_one_is_not_doubled() -> None:
    """One value per channel has no variance: torch refuses it in training, and so it is here."""
    model = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8))
    for mode in ("batch", "frozen-batch"):
        with pytest.raises(InputError, match="two values per channel"):
            normscope.analyze(model, Draw(0).tensor(1, 8), mode=mode)


def test_one_image_has_batch_statistics() -> None:
    """Its places are the values: a stacked batch of one, as it was given."""
    model = seeded(nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)))
    x = Draw(0).tensor(1, 1, 5, 5)
    result = normscope.analyze(model, x, mode="batch")
    upper, lower = result.end_to_end["variance_floor"], result.end_to_end["lower"]
    assert upper is not None
    assert lower is not None
    assert upper.domain.startswith("inputs in stacked batches of 1 ")
    model.train()
    norm = float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(model, x).reshape(-1, 25), 2))
    assert norm * (1 - 1e-3) <= lower.value <= upper.value


def test_an_uneven_last_batch_does_not_spoil_the_floor() -> None:
    """Three batches of 3, 3 and 1: the last has no variance, and is left out where the batch is the input."""
    model = seeded(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    x = Draw(0).tensor(7, 8)
    uneven = normscope.analyze(model, DataLoader(list(x), batch_size=3), mode="batch")  # type: ignore[arg-type]
    even = normscope.analyze(model, DataLoader(list(x[:6]), batch_size=3), mode="batch")  # type: ignore[arg-type]
    assert uneven.end_to_end["variance_floor"] == even.end_to_end["variance_floor"]
    assert any("batch of 3: 1" in text for text in uneven.messages)
    assert not any("skipped" in text for text in even.messages)


def test_a_limit_below_the_batch_cuts_it() -> None:
    """The stacked batch is of as many samples as may be used."""
    model = seeded(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)))
    result = normscope.analyze(model, Draw(0).tensor(7, 8), mode="batch", limit=4)
    assert result.input["blocks"][0]["shape"] == [4, 8]
    assert result.statistics["samples"] == 4


@pytest.mark.parametrize("steps", [1, 5])
def test_time_in_the_first_axis_is_analyzed_as_a_whole(steps: int) -> None:
    """The default layout of recurrent layers: the bound is of the whole sequence, at the length of the example."""
    model = seeded(Lambda(lambda s, x: s.g(x)[0], g=nn.RNN(4, 3, nonlinearity="relu")))
    x: Tensor = Draw(2).tensor(steps, 2, 4)
    result = normscope.analyze(model, x, points=1, ascent=0)
    upper, lower = result.end_to_end["global"], result.end_to_end["jacobian"]
    assert upper is not None
    assert lower is not None
    assert result.input["blocks"][0]["shape"] == [steps, 2, 4]
    assert upper.domain == ("all inputs" if steps == 1 else f"inputs in batches of {steps}")
    truth = torch.autograd.functional.jacobian(model, x).reshape(-1, x.numel())
    norm = float(torch.linalg.matrix_norm(truth, 2))
    assert norm <= upper.value < math.inf
    assert lower.value == pytest.approx(norm, rel=1e-4)


def test_a_normalizer_that_is_called_twice_is_frozen_twice() -> None:
    """Each call by the statistics of what it was given."""
    norm = nn.BatchNorm1d(3).double()
    model = Lambda(lambda s, x: s.b(100 * s.b(0.01 * x)), b=norm)
    x = points(16, 3)
    first = (0.01 * x).var(0, unbiased=False) + norm.eps
    second = (100 * (0.01 * x - (0.01 * x).mean(0)) / first.sqrt()).var(0, unbiased=False) + norm.eps
    truth = float((1.0 / (first * second).sqrt()).max())
    found = normscope.analyze(model, x, mode="frozen-batch").end_to_end
    assert found["global"].value == pytest.approx(truth, rel=1e-6)  # type: ignore[union-attr]
    assert found["lower"].value == pytest.approx(truth, rel=1e-6)  # type: ignore[union-attr]
