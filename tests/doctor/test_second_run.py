"""A second run of a few samples."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from checking import initialized, noise
from networks import Lambda
from normscope.doctor.sample_dependence import ALONE
from normscope.doctor.second_run import again, in_precision, precision_run
from normscope.doctor.subject import examine


def test_the_second_run_is_of_few_samples_and_finds_nothing_in_a_plain_network() -> None:
    """Alone and beside float64."""
    model = initialized(nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 2)))
    subject = examine(model, noise(64, 6))
    assert subject.companions is not None
    assert len(subject.companions.alone[0]) == ALONE
    result = again(subject.captured, subject.companions, None)
    assert result.apart is not None
    assert result.apart.culprit() is None
    assert result.beside is not None
    assert result.beside.first() is None


def test_the_model_in_another_precision_is_a_copy() -> None:
    """Its graph is in half precision, the model is not."""
    model = initialized(nn.Sequential(nn.Linear(6, 5), nn.LayerNorm(5)))
    before = copy.deepcopy(model.state_dict())
    captured = examine(model, noise(8, 6)).captured
    half = in_precision(model, captured, torch.float16)
    assert half is not None
    assert {n.dtype for n in half.graph if n.dtype} == {"float16"}
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    beside = precision_run(half, [noise(8, 6)])
    assert beside is not None
    assert beside.first() is None


class _Uncopied(nn.Linear):
    """A layer that cannot be copied."""

    def __deepcopy__(self, memo: dict[int, object]) -> Tensor:
        raise RuntimeError("no copy")


def test_a_model_that_cannot_be_copied_is_left_alone() -> None:
    """No graph in half precision."""
    model = _Uncopied(3, 2)
    assert in_precision(model, examine(model, noise(4, 3)).captured, torch.float16) is None


def test_a_wide_run_of_a_large_network_only_where_something_can_be_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Torch's own layers, and a quotient."""
    monkeypatch.setattr("normscope.doctor.second_run.LARGE", 1)
    for forward, told in ((lambda s, x: s.fc(x), False), (lambda s, x: s.fc(x) / (1 + s.fc(x).abs()), True)):
        subject = examine(Lambda(forward, fc=nn.Linear(6, 2)), noise(8, 6))
        assert (subject.again.beside is not None) is told
        assert subject.again.apart is not None
