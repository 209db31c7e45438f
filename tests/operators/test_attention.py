"""Softmax and attention against autograd, over random rows inside the ranges the constants ask for."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from networks import Lambda, points, seeded, spectral_norm
from normscope import analyze
from normscope.operators.attention import attention_constants, score_constant
from normscope.testing.upper_bound import check_upper_bound
from operators.refute import Case, nonlinear, program, refuted, without_constant

SOFT: dict[str, Case] = {
    "softmax": (lambda x: x.softmax(1), (4,), 0.5),
    "softmax along another axis": (lambda x: x.softmax(1), (3, 2), 0.5),
    "softmax of one entry": (lambda x: x.softmax(1), (1,), 0.0),
    "log-softmax": (lambda x: x.log_softmax(1), (4,), 2.0),
    "log-sum-exp": (lambda x: x.logsumexp(1), (4,), 1.0),
    "tempered softmax": (lambda x: (x / 0.1).softmax(1), (4,), 5.0),
}  # fmt: skip


@pytest.mark.parametrize("name", SOFT)
def test_softmax_and_kin(name: str) -> None:
    """One half, the root of n, and one."""
    nonlinear(SOFT[name])


def test_softmax_attains_one_half_and_log_softmax_its_root() -> None:
    """Two equal logits far above the rest; one logit far above the rest."""
    two = torch.tensor([[50.0, 50.0, 0.0]]).double()
    jacobian = torch.autograd.functional.jacobian(lambda z: z.softmax(1), two).reshape(3, 3)
    assert spectral_norm(jacobian) == pytest.approx(0.5, rel=1e-9)
    one = torch.tensor([[50.0, 0.0, 0.0]]).double()
    jacobian = torch.autograd.functional.jacobian(lambda z: z.log_softmax(1), one).reshape(3, 3)
    assert spectral_norm(jacobian) == pytest.approx(math.sqrt(3), rel=1e-9)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("masked", [False, True])
def test_constants_of_attention_hold(seed: int, masked: bool) -> None:
    """Jacobians with respect to q, k and v at random rows, against the three constants at the largest rows met."""
    generator = torch.Generator().manual_seed(seed)
    n, m, d = 3, 4, 2
    sizes = torch.tensor([0.1, 1.0, 4.0])[torch.randint(3, (3,), generator=generator)].tolist()
    q, k, v = (
        torch.randn(rows, d, generator=generator, dtype=torch.float64) * size
        for rows, size in zip((n, m, m), sizes, strict=True)
    )
    mask = torch.where(torch.rand(n, m, generator=generator) < 0.3, -math.inf, 0.0).double() if masked else None
    if mask is not None:
        mask[:, 0] = 0.0
    scale = 0.7
    parts = torch.autograd.functional.jacobian(
        lambda q, k, v: F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, scale=scale),
        (q, k, v),
    )
    rows = [float(t.norm(dim=1).max()) for t in (q, k, v)]
    for part, constant in zip(parts, attention_constants(n, scale, *rows), strict=True):
        assert spectral_norm(part.reshape(n * d, -1)) <= constant * (1 + 1e-12)


def test_equal_queries_move_together() -> None:
    """When a key moves, all of them do: the constant grows with the root of their number."""
    q, v = torch.ones(16, 1, dtype=torch.float64), torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    jacobian = torch.autograd.functional.jacobian(
        lambda k: (q @ k.mT).softmax(-1) @ v, torch.zeros(2, 1, dtype=torch.float64)
    )
    steepest = float(torch.linalg.matrix_norm(jacobian.reshape(16, 2), ord=2))
    assert steepest == pytest.approx(math.sqrt(8.0))
    assert steepest <= attention_constants(16, 1.0, 1.0, 0.0, 1.0)[1] == 4.0


def test_one_key_gives_its_value() -> None:
    """Every query sees the same: n copies of one row."""
    constants = attention_constants(4, 1.0, 2.0, 0.0, 0.0)
    assert constants == (0.0, 0.0, 2.0)
    checked = refuted(lambda x: F.scaled_dot_product_attention(x, x[:, :1], x[:, :1]), 4, 3)
    assert math.exp(checked.upper["everywhere"]) == pytest.approx(2.0, rel=1e-9)


def test_attention_needs_bounded_rows() -> None:
    """Not Lipschitz on all inputs; after a normalizer it is."""
    without_constant(lambda x: F.scaled_dot_product_attention(x, x, x), 3, 4)
    checked = refuted(lambda x: F.scaled_dot_product_attention(*[F.layer_norm(x, (4,))] * 3), 3, 4)
    assert checked.upper["everywhere"] < math.inf
    causal = refuted(lambda x: F.scaled_dot_product_attention(*[F.layer_norm(x, (4,))] * 3, is_causal=True), 3, 4)
    assert causal.upper["everywhere"] < math.inf


MOVING: dict[str, Callable[[Tensor], Tensor]] = {
    "scores of its own": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=0.5 * x @ x.mT),
    "one number per key": lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x[..., :1].mT),
    "relative positions of the queries": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=torch.tanh(x) @ torch.linspace(-1, 1, 12).double().reshape(4, 3)
    ),
    "partly hidden": lambda x: F.scaled_dot_product_attention(
        x, x, x, attn_mask=(x @ x.mT).masked_fill(torch.ones(3, 3).triu(1).bool(), -math.inf)
    ),
}


@pytest.mark.parametrize("name", MOVING)
def test_a_mask_that_depends_on_the_input(name: str) -> None:
    """Scores may have numbers added that move; on the range of the data nothing refutes the bound."""
    without_constant(MOVING[name], 3, 4)
    normalized = refuted(lambda x: MOVING[name](F.layer_norm(x, (4,))), 3, 4)
    assert normalized.opaque == []
    assert normalized.upper["everywhere"] < math.inf


def test_a_mask_that_jumps_is_known_to_jump() -> None:
    """Keys that are hidden by a comparison."""
    found = program(lambda x: F.scaled_dot_product_attention(x, x, x, attn_mask=x @ x.mT > 0), 3, 3)
    assert any("mask" in e.atom.reason and e.atom.known for e in found.opaque)


@pytest.mark.parametrize("seed", range(8))
def test_the_constant_of_added_scores_holds(seed: int) -> None:
    """Jacobians at random scores; two opposite values with equal weights come to within a tenth of it."""
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(4, 2, generator=generator, dtype=torch.float64)
    scores = 3.0 * torch.randn(3, 4, generator=generator, dtype=torch.float64)
    radius = float(values.norm(dim=1).max())
    jacobian = torch.autograd.functional.jacobian(lambda b: b.softmax(-1) @ values, scores).reshape(6, 12)
    assert spectral_norm(jacobian) <= score_constant(radius)
    pair = torch.tensor([[1.0], [-1.0]], dtype=torch.float64)
    even = torch.autograd.functional.jacobian(lambda b: b.softmax(-1) @ pair, torch.zeros(2, dtype=torch.float64))
    assert 0.9 * score_constant(1.0) <= spectral_norm(even) <= score_constant(1.0)


def test_grouped_heads() -> None:
    """Two query heads share one key head."""

    def function(x: torch.Tensor) -> torch.Tensor:
        h = F.layer_norm(x, (4,)).unflatten(-1, (2, 2)).transpose(1, 2)
        return F.scaled_dot_product_attention(h, h[:, :1], h[:, :1], enable_gqa=True)

    assert refuted(function, 3, 4).upper["everywhere"] < math.inf


@pytest.mark.parametrize("first", [True, False])
def test_a_transformer_layer(first: bool) -> None:
    """Pre- and post-norm encoder layers: every tensor inside obeys its range and constant."""
    torch.manual_seed(0)
    model = seeded(nn.TransformerEncoderLayer(4, 2, 8, batch_first=True, norm_first=first))
    checked = check_upper_bound(model, [points(2, 3, 4)], ascent=5)
    assert checked.violations == []
    assert (checked.upper["floors"] < math.inf) is first
    assert checked.upper["floors and range"] < math.inf


def test_one_query_for_a_whole_batch_is_broadcast() -> None:
    """A learned query of batch one over keys and values of a batch: no head is repeated, none is lost."""
    query = torch.randn(1, 3, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    model = Lambda(lambda s, x: F.scaled_dot_product_attention(query, x.tanh(), x.tanh()))
    x = points(5, 3, 4)
    result = analyze(model, x)
    assert result.end_to_end["variance_floor"].log >= result.end_to_end["lower"].log
    assert result.end_to_end["variance_floor"].log < math.inf
