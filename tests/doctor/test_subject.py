"""Looking at a model once."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from checking import noise
from normscope.core.errors import InputError
from normscope.doctor.modules import batch_norms
from normscope.doctor.subject import examine


def test_what_is_there_and_what_is_not() -> None:
    """Program always; data, optimizer and batch size if they were given."""
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval()
    bare = examine(model)
    assert [bare.has(n) for n in ("program", "data", "optimizer", "batch size")] == [True, False, False, False]
    loader = DataLoader(TensorDataset(noise(9, 3)), batch_size=4)
    full = examine(model, loader, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    assert all(full.has(n) for n in ("program", "data", "optimizer", "batch size"))
    assert (full.batch_size, full.samples) == (4, (9, False))
    assert full.seen is not None
    assert full.seen.samples == 9


def test_batch_norm_divides_in_the_program_of_training_only() -> None:
    """Two programs of one graph."""
    subject = examine(nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2)).eval())
    assert [s.spread for s in subject.sites()] == [None]
    assert [site.spread is not None for site, _, _ in subject.structure.sites()] == [True]


def test_parameters_are_found_by_what_they_are() -> None:
    """Not by what a module calls them."""
    subject = examine(nn.Linear(3, 2))
    assert subject.parameter_name(subject.model.bias.detach(), "elsewhere") == "bias"
    assert subject.parameter_name(subject.model.bias.detach().double().clone(), "") == "bias"
    assert subject.parameter_name(torch.ones(2), "") == ""


def test_a_model_that_cannot_be_run_says_why() -> None:
    """Data that does not fit is another matter."""
    assert "shape" in examine(nn.Linear(3, 2), input_shape=(4,)).failure
    with pytest.raises(InputError):
        examine(nn.Linear(3, 2), noise(4, 7))


def test_modules_by_kind() -> None:
    """With their paths."""
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.BatchNorm1d(2)))
    assert [path for path, _ in batch_norms(model)] == ["1.0"]


def test_a_buffer_that_is_used_must_be_finite() -> None:
    """It is told like a weight that is not; one that nothing uses is no matter."""
    model = nn.Linear(2, 2)
    model.register_buffer("unused", torch.tensor([float("inf")]))
    assert examine(model).non_finite == ""
    shift = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    shift.register_buffer("offset", torch.tensor([float("inf")]))
    shift.register_forward_hook(lambda module, args, result: result + module.offset)
    assert "the buffer offset has 1 NaN or infinite" in examine(shift).non_finite
