"""Random layers: everything there is gets drawn, each a function of its input alone."""

from __future__ import annotations

import pytest
import torch

from fuzzing import random_layers
from fuzzing.draw import Draw, Shape
from fuzzing.drawing import Builder, built, keeps, names_of

CASES: dict[str, tuple[Builder, tuple[Shape, ...], int]] = {
    "activation": (random_layers.activation, ((3,), (2, 3)), 43),
    "arithmetic": (random_layers.arithmetic, ((3,), (2, 3)), 22),
    "linear": (random_layers.linear, ((3,), (2, 3)), 6),
    "mixing": (random_layers.mixing, ((3, 4), (2, 3, 3)), 8),
    "convolution": (random_layers.convolution, ((2, 4), (2, 3, 3), (2, 2, 2, 2)), 10),
    "pooling": (random_layers.pooling, ((2, 4), (4, 4, 4)), 12),
    "layout": (random_layers.layout, ((4,), (3, 4)), 30),
    "reduction": (random_layers.reduction, ((3,), (3, 4)), 20),
}


@pytest.mark.turns(5)
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", CASES)
def test_each_kind_is_drawn_and_is_a_function(name: str) -> None:
    """Many different ones, none of which writes into its input; most fit the shape they are made for."""
    builder, shapes, kinds = CASES[name]
    tried, found = 0, []
    for shape in shapes:
        for seed in range(250):
            tried += 1
            module = built(builder, seed, shape)
            if module is not None:
                keeps(module, Draw(seed + 1).tensor(3, *shape))
                found.append(module)
    assert len(names_of(found)) >= kinds, names_of(found)
    assert len(found) >= 0.95 * tried


@pytest.mark.parametrize("name", CASES)
def test_the_seed_decides(name: str) -> None:
    """The same layer again, to the last bit."""
    builder, shapes, _ = CASES[name]
    for seed in range(5):
        first, again = (built(builder, seed, shapes[-1]) for _ in range(2))
        if first is None or again is None:
            assert first is again
            continue
        x = Draw(7).tensor(2, *shapes[-1])
        with torch.no_grad():
            assert torch.equal(first(x), again(x))


def test_standardized_weights_have_mean_zero_and_variance_one() -> None:
    """Over all but the first axis, up to the stabilizer."""
    W = random_layers._standardized(Draw(0).tensor(4, 3, 5, scale=10.0) + 2.0)
    assert torch.allclose(W.mean((1, 2)), torch.zeros(4).double(), atol=1e-12)
    assert torch.allclose(W.var((1, 2), unbiased=False), torch.ones(4).double(), atol=1e-3)


def test_writing_in_place_writes_into_a_copy() -> None:
    """The slice is overwritten, the first one doubled, the input left alone."""
    x = torch.arange(6.0).reshape(1, 2, 3)
    found = random_layers._overwritten(x, 2, 1, 9.0)
    assert found.tolist() == [[[0.0, 9.0, 2.0], [6.0, 9.0, 5.0]]]
    assert x.flatten().tolist() == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


def test_rows_are_put_and_added() -> None:
    """Twice the row at the place, plus the first row."""
    x, b = torch.arange(6.0).reshape(1, 3, 2), torch.full((1, 3, 2), 100.0)
    found = random_layers._put(x, torch.tensor([4, 0]), b)  # place four of three is place one
    assert found.tolist() == [[[100.0, 100.0], [4.0, 7.0], [100.0, 100.0]]]
    assert float(b.sum()) == 600.0
