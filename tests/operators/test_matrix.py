"""Matrix products: linear by a constant, on ranges otherwise."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

from networks import points, spectral_norm
from operators.refute import Case, linear, nonlinear, program, refuted, without_constant

W, V, STACK = points(3, 4), points(4), points(2, 4, 3)
LINEAR: dict[str, Case] = {
    "linear": (lambda x: F.linear(x, W), (4,), spectral_norm(W)),
    "linear with bias": (lambda x: F.linear(x, W, torch.ones(3).double()), (4,), spectral_norm(W)),
    "tokens": (lambda x: F.linear(x, W), (5, 4), spectral_norm(W)),
    "from the right": (lambda x: x @ W.T, (4,), spectral_norm(W)),
    "from the left": (lambda x: W @ x, (4, 2), spectral_norm(W)),
    "vector": (lambda x: x @ V, (3, 4), float(V.norm())),
    "vector from the left": (lambda x: V @ x, (4, 3), float(V.norm())),
    "one matrix per head": (lambda x: x @ STACK, (2, 5, 4), max(spectral_norm(m) for m in STACK)),
    "one matrix per head from the left": (lambda x: STACK.mT @ x, (2, 4, 5), max(spectral_norm(m) for m in STACK)),
    "batch broadcast": (lambda x: x[:, None] @ STACK, (5, 4), spectral_norm(STACK.transpose(0, 1).reshape(4, 6))),
    "addmm": (lambda x: torch.addmm(torch.ones(3).double(), x, W.T, alpha=2.0), (4,), 2 * spectral_norm(W)),
    "bmm": (lambda x: torch.bmm(x, W.T.expand(x.shape[0], 4, 3)), (5, 4), spectral_norm(W)),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_products_with_a_constant(name: str) -> None:
    """The norm of the matrix, wherever it stands."""
    linear(LINEAR[name])


def test_products_of_two_inputs_need_a_range() -> None:
    """X X^T is quadratic; after tanh its rows are bounded."""
    without_constant(lambda x: x @ x.mT, 3, 4)
    without_constant(lambda x: x.softmax(-1) @ x, 3, 3)
    nonlinear((lambda x: x.tanh() @ x.sigmoid().mT, (3, 4), None))
    nonlinear((lambda x: F.layer_norm(x, (4,)) @ F.layer_norm(x, (4,)).mT, (3, 4), None))


def test_the_product_rule_is_attained_on_a_range() -> None:
    """One row times one column of equal entries r: d(x.y) = r (dx + dy), constant 2 r sqrt(n) at most."""
    r, n = 3.0, 4
    data = torch.full((2, n), r).double()
    checked = refuted(lambda x: (x[:, None, :] @ x[:, :, None])[:, 0], n, data=data)
    assert math.exp(checked.upper["range"]) == pytest.approx(2 * r * math.sqrt(n), rel=1e-6)
    assert checked.attained["range"] == pytest.approx(checked.upper["range"], abs=1e-6)


def test_cosine_similarity() -> None:
    """Two normalized vectors multiplied: finite with its stabilizer, checked at every scale."""
    fixed = points(1, 4)
    checked = refuted(lambda x: F.cosine_similarity(x, fixed, dim=1, eps=1e-2), 4)
    assert checked.upper["everywhere"] < math.inf


def test_a_weight_that_depends_on_the_input() -> None:
    """Hypernetworks: a product of two functions, finite where both are bounded."""
    without_constant(lambda x: torch.bmm(x[:, None], x[:, :, None].expand(-1, -1, 2))[:, 0], 3)
    found = program(lambda x: torch.kron(x, x), 2)
    assert [e.atom.known for e in found.opaque] == [False]
