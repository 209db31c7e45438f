"""Input factors: the norm of ``dW -> dy`` against the dense Jacobian of the same operation."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, seeded
from normscope.lipschitz.weights import factors
from normscope.lipschitz.weights.factors import Factor, activation, meet, stacked_norm

F = nn.functional


def _normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def _weight(*shape: int) -> nn.Parameter:
    return nn.Parameter(_normal(*shape, seed=1))


CASES: dict[str, tuple[Callable[[], nn.Module], Tensor]] = {
    "linear on a vector": (lambda: nn.Linear(4, 3), _normal(1, 4)),
    "linear on tokens": (lambda: nn.Linear(4, 3), _normal(1, 5, 4)),
    "convolution": (lambda: nn.Conv2d(4, 6, 3, stride=2, padding=1, groups=2), _normal(1, 4, 5, 6)),
    "one stride an axis": (lambda: nn.Conv2d(2, 3, 3, stride=(2, 1), padding=(0, 1)), _normal(1, 2, 6, 5)),
    "dilated": (lambda: nn.Conv2d(2, 3, 2, dilation=2), _normal(1, 2, 5, 5)),
    "depthwise": (lambda: nn.Conv2d(6, 6, 3, padding=1, groups=6), _normal(1, 6, 4, 4)),
    "same padding": (lambda: nn.Conv2d(2, 3, 3, padding="same", dilation=2), _normal(1, 2, 4, 4)),
    "one axis": (lambda: nn.Conv1d(3, 2, 3, stride=2, padding=1), _normal(1, 3, 7)),
    "three axes": (lambda: nn.Conv3d(2, 2, 2), _normal(1, 2, 3, 3, 3)),
    "transposed": (lambda: nn.ConvTranspose2d(4, 6, 3, stride=2, padding=1, groups=2), _normal(1, 4, 3, 3)),
    "times a matrix": (lambda: Lambda(lambda m, x: x @ m.w, w=_weight(4, 3)), _normal(1, 5, 4)),
    "a matrix times": (lambda: Lambda(lambda m, x: m.w @ x, w=_weight(3, 5)), _normal(1, 5, 4)),
    "one matrix a head": (lambda: Lambda(lambda m, x: x @ m.w, w=_weight(2, 4, 3)), _normal(1, 2, 5, 4)),
    "transposed weight": (lambda: Lambda(lambda m, x: x @ m.w.t(), w=_weight(3, 4)), _normal(1, 5, 4)),
    "a slice": (lambda: Lambda(lambda m, x: x @ m.w[:, :3], w=_weight(4, 5)), _normal(1, 5, 4)),
    "a repeated weight": (lambda: Lambda(lambda m, x: x + m.w.expand(1, 5, 4), w=_weight(1, 1, 4)), _normal(1, 5, 4)),
    "gain": (lambda: Lambda(lambda m, x: x * m.w, w=_weight(4)), _normal(1, 5, 4)),
    "one number": (lambda: Lambda(lambda m, x: x * m.w, w=_weight(1)), _normal(1, 5, 4)),
    "beside": (lambda: Lambda(lambda m, x: torch.cat([m.w, x], 1), w=_weight(1, 1, 4)), _normal(1, 5, 4)),
    "layer norm": (lambda: nn.LayerNorm(4), _normal(1, 5, 4)),
    "rms norm": (lambda: nn.RMSNorm(4, eps=1e-5), _normal(1, 5, 4)),
    "group norm": (lambda: nn.GroupNorm(2, 4), _normal(1, 4, 3, 3)),
    "batch norm": (lambda: nn.BatchNorm2d(4), _normal(1, 4, 3, 3)),
    "prelu": (lambda: nn.PReLU(4), _normal(1, 4, 5)),
    "subtracted": (lambda: Lambda(lambda m, x: m.w - x, w=_weight(4)), _normal(1, 5, 4)),
    "embedding": (lambda: nn.Embedding(6, 4), torch.tensor([[2, 5, 2, 2, 0]])),
    "added product": (
        lambda: Lambda(lambda m, x: torch.addmm(m.b, x, m.w), w=_weight(4, 3), b=_weight(3)),
        _normal(1, 4),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_factors_are_the_norms_of_dense_jacobians(name: str, found: Any, dense: Any) -> None:
    """Each factor, copies before it included, is the norm of the operation in its weight, from above and to 1e-9."""
    build, x = CASES[name]
    model = seeded(build())
    captured, weights = found(model, x)
    assert {leaf.name for leaf in weights.leaves} == {n for n, _ in model.named_parameters()}
    sample = meet(captured, weights, [x])
    for index, use in enumerate(weights.uses):
        truth = dense(model, weights.leaves[use.leaf].name, x)
        measured = sample.met[index].norm * use.copies
        assert truth <= measured <= truth * (1 + 1e-9) + 1e-12, use


def test_many_groups_are_as_few() -> None:
    """Eigenvalues of all Gram matrices at once give what each block gives alone."""
    blocks = _normal(12, 7, 3)
    truth = float(torch.linalg.matrix_norm(blocks, ord=2).max())
    assert truth <= Factor(blocks).norm() <= truth * (1 + 1e-9)
    assert Factor(blocks[:0]).norm() == 0.0


def test_stacking_and_centring() -> None:
    """Stacked rows are one matrix; centring takes the mean row away, and a bias altogether."""
    one, two = _normal(1, 3, 4), _normal(1, 2, 4, seed=2)
    whole = torch.cat([one[0], two[0]])
    stack = Factor(one).stacked([Factor(two)])
    assert abs(stack.norm() - float(torch.linalg.matrix_norm(whole, ord=2))) < 1e-9
    centred = whole - whole.mean(0)
    assert abs(stack.centred().norm() - float(torch.linalg.matrix_norm(centred, ord=2))) < 1e-9
    bias = Factor(None, torch.tensor([4.0, 9.0])).stacked([Factor(None, torch.tensor([5.0, 1.0]))])
    assert abs(bias.norm() - 10.0**0.5) < 1e-9
    assert bias.centred().norm() == 0.0


def test_activations_are_norms_of_whole_tensors(found: Any) -> None:
    """``||h_{i-1}||`` is that of the tensor a kernel meets, and nothing for a bias."""
    x = _normal(1, 3, 4, 4)
    captured, weights = found(seeded(nn.Conv2d(3, 2, 3)), x)
    sample = meet(captured, weights, [x])
    kinds = {use.kind: sample.met[i].activation for i, use in enumerate(weights.uses)}
    assert abs(kinds["convolution"] - float(x.norm())) < 1e-12
    assert kinds["diagonal"] is None
    assert activation(captured.graph[weights.uses[1].node], weights.uses[1], {}) is None


def _inputs(count: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(1, 4, generator=generator, dtype=torch.float64) for _ in range(count)]


def test_norms_have_room_for_rounding(found: Any) -> None:
    """The norm of what a layer meets, and of the input, from above and to 1e-9."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2)))
    (x,) = _inputs(1)
    captured, weights = found(model, x)
    sample = meet(captured, weights, [x])
    index = next(i for i, u in enumerate(weights.uses) if weights.leaves[u.leaf].name == "2.weight")
    truth = float(model[:2](x).detach().norm())
    assert truth <= sample.met[index].norm <= truth * (1 + 1e-9)
    assert float(x.norm()) <= sample.input_norm <= float(x.norm()) * (1 + 1e-9)


@pytest.mark.parametrize("most", [2**24, 0])
def test_stacked_samples_are_one_matrix(most: int, found: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """``||H||_2`` of the batch, or the root of the sum of squares where it is too large."""
    monkeypatch.setattr(factors, "LARGEST_STACK", most)
    data = _inputs(6)
    captured, weights = found(seeded(nn.Linear(4, 3)), data[0])
    met = [meet(captured, weights, [x]).met[0] for x in data]
    whole = float(torch.linalg.matrix_norm(torch.cat(data), ord=2))
    squares = math.sqrt(sum(float(x.square().sum()) for x in data))
    expected = whole if most else squares
    assert max(m.norm for m in met) < whole < squares
    assert abs(stacked_norm(met) - expected) < 1e-9
