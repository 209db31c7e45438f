"""Data that ends with its first pass is read again from its beginning."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

import normscope
from normscope.graph.repeatable_data import KEPT, RepeatableIterator, repeatable


def test_what_can_be_read_again_is_left_alone() -> None:
    """Tensors, lists and loaders stay the objects they are; iterators are wrapped."""
    for data in (torch.ones(3), [torch.ones(3)], {"x": torch.ones(3)}, None, range(3)):
        assert repeatable(data) is data
    assert isinstance(repeatable(iter([1])), RepeatableIterator)


def test_a_full_pass_sees_everything_and_later_ones_the_beginning() -> None:
    """The first samples are kept, the rest streams by once: memory does not grow with the data."""
    size, count = 10, 20
    batches = [torch.full((size, 2), float(i)) for i in range(count)]
    data = RepeatableIterator(iter(batches))
    assert float(next(iter(data))[0, 0]) == 0.0
    assert [float(b[0, 0]) for b in data] == [float(i) for i in range(count)]
    again = [float(b[0, 0]) for b in data]
    assert again == [float(i) for i in range(len(again))]
    assert KEPT <= len(again) * size < KEPT + size


def test_samples_are_counted_in_every_form_of_batch() -> None:
    """A batch of pairs, of names or of numbers."""
    x = torch.ones(KEPT, 2)
    for batch in ((x, x), {"a": x, "b": x}, [x]):
        data = RepeatableIterator(iter([batch, batch]))
        assert len(list(data)) == 2
        assert len(list(data)) == 1
    numbers = RepeatableIterator(iter([1.0, 2.0, 3.0]))
    assert list(numbers) == list(numbers) == [1.0, 2.0, 3.0]


@pytest.mark.parametrize("where", ["loader", "sampler", "batch sampler"])
def test_generators_of_a_loader_are_left_where_they_were(where: str) -> None:
    """A training run that shuffles by its own generator goes on as if nothing had been analyzed."""
    generator = torch.Generator().manual_seed(5)
    data = TensorDataset(torch.randn(10, 4, generator=torch.Generator().manual_seed(1)))
    sampler = RandomSampler(data, generator=generator)
    loaders: dict[str, DataLoader[tuple[torch.Tensor, ...]]] = {
        "loader": DataLoader(data, batch_size=3, shuffle=True, generator=generator),
        "sampler": DataLoader(data, batch_size=3, sampler=sampler),
        "batch sampler": DataLoader(data, batch_sampler=BatchSampler(sampler, 3, drop_last=False)),
    }
    before = generator.get_state()
    model = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))
    normscope.analyze(model, loaders[where], points=1, ascent=0)
    assert torch.equal(generator.get_state(), before)
    normscope.weight_lipschitz(model, loaders[where], points=1)
    assert torch.equal(generator.get_state(), before)
    normscope.check(model, loaders[where])
    assert torch.equal(generator.get_state(), before)
