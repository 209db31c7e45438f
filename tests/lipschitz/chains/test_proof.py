"""Proofs of chains."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm, MatrixWithError, chain
from normscope.lipschitz.chains.elimination import eliminate
from normscope.lipschitz.chains.proof import ProofMatrix, prove


def _weights(*sizes: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    pairs = itertools.pairwise(sizes)
    return [torch.randn(b, a, generator=generator, dtype=torch.float64) / math.sqrt(a) for a, b in pairs]


@pytest.mark.parametrize("slopes", [(0.0, 1.0), (0.25, 1.0), (-0.13, 1.13), (-1.0, 1.0)])
def test_nothing_below_a_choice_of_slopes_is_proved(slopes: tuple[float, float]) -> None:
    """The largest norm over all corners of the slopes is no constant that a proof can go below."""
    weights = _weights(3, 4, 4, 2)
    worst = 0.0
    for corner in itertools.product(slopes, repeat=8):
        first, second = (torch.diag(torch.tensor(part).double()) for part in (corner[:4], corner[4:]))
        jacobian = weights[2] @ second @ weights[1] @ first @ weights[0]
        worst = max(worst, float(torch.linalg.matrix_norm(jacobian, 2)))
    form = chain(weights, slopes)
    multipliers = [torch.full((4,), 6.0).double(), torch.full((4,), 3.0).double()]
    rest = eliminate(form, multipliers)
    assert rest is not None
    constant = float(torch.linalg.eigvalsh(rest.sources).max()) ** 0.5
    proved = prove(form, multipliers, [constant])
    assert proved is not None
    assert worst < proved[0] < constant * (1 + 1e-6)
    assert prove(form, multipliers, [constant * 0.99]) is None
    for scale in (0.3, 1.0, 3.0, 30.0):
        assert prove(form, [scale * m for m in multipliers], [worst * 0.999]) is None


def test_the_matrix_is_what_it_says() -> None:
    """Block by block against the quadratic form at a vector."""
    weights = _weights(2, 3, 3, 2)
    low, high = -0.1, 1.2
    form = chain(weights, (low, high))
    multipliers = [torch.rand(3).double() + 1, torch.rand(3).double() + 1]
    whole = ProofMatrix.of(form, multipliers)
    x, h1, h2 = (torch.randn(n).double() for n in (2, 3, 3))
    z1, z2 = weights[0] @ x, weights[1] @ h1
    meant = -float((weights[2] @ h2).square().sum())
    for m, h, z in zip(multipliers, (h1, h2), (z1, z2), strict=True):
        meant -= float((2 * m * (h - low * z) * (high * z - h)).sum())
    parts = (x, h1, h2)
    found = sum(float(parts[i] @ block[0] @ parts[j]) * (1 if i == j else 2) for (i, j), block in whole.blocks.items())
    assert found == pytest.approx(meant, rel=1e-12)


def test_errors_of_the_matrices_raise_what_is_proved() -> None:
    """An error of one per mille of every entry leaves nothing to prove near the exact constant."""
    weights = _weights(3, 4, 2)
    exact = chain(weights)
    wrong = ChainForm(
        (3,),
        (ActivationUnit({0: MatrixWithError(weights[0][None], 1e-3 * weights[0].abs())}),),
        {1: MatrixWithError(weights[1][None], 1e-3 * weights[1].abs())},
    )
    multipliers = [torch.full((4,), 4.0).double()]
    rest = eliminate(exact, multipliers)
    assert rest is not None
    constant = float(torch.linalg.eigvalsh(rest.sources).max()) ** 0.5
    assert prove(exact, multipliers, [constant]) is not None
    assert prove(wrong, multipliers, [constant * 1.0001]) is None or (
        prove(wrong, multipliers, [constant * 1.0001])[0] > constant * 1.0005  # type: ignore[index]
    )


def test_multipliers_that_are_no_multipliers_prove_nothing() -> None:
    """Negative ones, and NaN."""
    form = chain(_weights(2, 2, 2))
    assert prove(form, [torch.tensor([1.0, -1.0]).double()], [100.0]) is None
    assert prove(form, [torch.tensor([1.0, math.nan]).double()], [100.0]) is None


def test_complex_blocks_are_proved_alike() -> None:
    """A real form as one complex block, and two blocks as the larger of both."""
    weights = _weights(2, 3, 2)
    double = [torch.stack([w, 2 * w]).to(torch.complex128) for w in weights]
    form = ChainForm((2,), (ActivationUnit({0: MatrixWithError(double[0])}),), {1: MatrixWithError(double[1])})
    multipliers = [torch.full((3,), 20.0).double()]
    rest = eliminate(form, multipliers)
    assert rest is not None
    constant = float(torch.linalg.eigvalsh(rest.sources).max()) ** 0.5
    proved = prove(form, multipliers, [constant])
    assert proved is not None
    assert constant <= proved[0] < constant * (1 + 1e-6)
