"""The copy that is attacked computes what the user's model computes, in float64, and leaves the user's model alone."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fingerprints import fingerprint
from normscope.core.errors import InputError
from normscope.graph.inputs import ModelInputs
from normscope.testing.hooked_model import FLOAT32_NOISE, FLOAT64_NOISE, HookedModel


def _hooked(model: nn.Module, x: Tensor, kind: str = "input", shape: tuple[int, ...] | None = None) -> HookedModel:
    return HookedModel(model, ModelInputs((x,)), [{"shape": shape or tuple(x.shape), "kind": kind}])


def test_it_gives_what_the_model_gives_and_records_every_call() -> None:
    """Several points at once; a module that is called twice is recorded twice."""
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer)
    before = fingerprint(model)
    hooked = _hooked(model, torch.randn(1, 3))
    x = torch.randn(4, 3, dtype=torch.float64)
    trace = hooked(x)
    expected = model.double()(x)
    model.float()
    assert torch.allclose(trace.output, expected)
    assert [c for c in trace.order if c[0]] == [("0", 0), ("1", 0), ("0", 1)]
    assert torch.equal(trace.before[("0", 1)], trace.after[("1", 0)])
    assert fingerprint(nn.Sequential(layer, nn.Tanh(), layer)) != before  # another object: fingerprints do tell
    assert hooked.mixed_calls(x[:3]) == set()


class _Tokens(nn.Module):
    """Scaled embeddings, and a sum in float32 whatever the dtype."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(7, 4)
        self.places = nn.Embedding(3, 4)

    def forward(self, ids: Tensor) -> Tensor:
        """Add positions to scaled embeddings."""
        here = self.places(torch.arange(ids.shape[1])[None])
        return (2.0 * self.table(ids) + here).to(torch.float32).cumsum(-1)


def test_embeddings_of_the_tokens_are_the_point_and_nothing_is_computed_in_float32() -> None:
    """Positions are held, and the slope of the sum is that of the user's forward."""
    model = _Tokens()
    hooked = _hooked(model, torch.tensor([[1, 2, 1]]), "embedding output", (1, 3, 4))
    point = hooked.point()
    assert torch.equal(point, model.table(torch.tensor([1, 2, 1])).detach().double().flatten())
    moved = point.clone()
    moved[0] += 1e-9
    change = (hooked(moved[None]).output - hooked(point[None]).output).reshape(3, 4)
    assert torch.allclose(change[0], torch.full((4,), 2e-9, dtype=torch.float64), rtol=1e-5)
    assert float(change[1:].abs().max()) == 0.0
    assert hooked.noise == FLOAT64_NOISE
    assert FLOAT32_NOISE > FLOAT64_NOISE


class _Experts(nn.Module):
    """Rows times the matrix of their expert: the first two by one matrix, the third by another, the fourth by none."""

    def __init__(self) -> None:
        super().__init__()
        self.matrices = nn.Parameter(torch.randn(2, 8, 8))

    def forward(self, x: Tensor) -> Tensor:
        """Multiply, as mixtures of experts do."""
        ends = torch.tensor([2, 3], dtype=torch.int32)
        return torch.nn.functional.grouped_mm(x[0], self.matrices, offs=ends)[None]


@pytest.mark.skipif(not hasattr(torch.nn.functional, "grouped_mm"), reason="this torch has no grouped products")
def test_grouped_products_are_computed_in_float64() -> None:
    """Torch has them in narrower dtypes alone."""
    model = _Experts()
    hooked = _hooked(model, torch.randn(1, 4, 8))
    x = torch.randn(1, 32, dtype=torch.float64)
    rows, (first, second) = x.reshape(4, 8), model.matrices.detach().double()
    expected = torch.cat([rows[:2] @ first, rows[2:3] @ second, torch.zeros(1, 8, dtype=torch.float64)])
    assert torch.allclose(hooked(x).output.reshape(4, 8), expected, rtol=1e-14)
    assert hooked.noise == FLOAT64_NOISE


def test_weights_and_shifts_can_be_put_in_place() -> None:
    """Both can be differentiated."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    hooked = _hooked(model, torch.ones(1, 2))
    x = torch.ones(1, 2, dtype=torch.float64)
    zero = torch.zeros(2, 2, dtype=torch.float64)
    assert float(hooked(x, weights={"0.weight": zero}).output) == 0.0
    shifted = hooked(x, shifts={("0", 0): torch.ones(1, 2, dtype=torch.float64)}).output - hooked(x).output
    assert float(shifted) == pytest.approx(float(model[1].weight.detach().sum()))


def test_samples_that_meet_are_found() -> None:
    """A mean over the batch mixes them."""

    class Mean(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x - x.mean(0)

    assert None in _hooked(Mean(), torch.ones(1, 2)).mixed_calls(torch.randn(3, 2, dtype=torch.float64))


def test_inputs_of_another_shape_than_the_analysis_speaks_of_are_refused() -> None:
    """One line says both."""
    with pytest.raises(InputError, match=r"inputs of shapes \[\(1, 3\)\]"):
        _hooked(nn.Linear(2, 2), torch.ones(1, 2), shape=(1, 3)).point()
