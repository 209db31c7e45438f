"""Matrix products: linear by a constant, on ranges otherwise."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from networks import points, spectral_norm
from normscope.operators.matrix import bilinear_norm
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


@pytest.mark.turns(3)
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


GENERATOR = torch.Generator().manual_seed(0)


def _drawn(*shape: int) -> Tensor:
    """Return a constant."""
    return torch.randn(shape, generator=GENERATOR, dtype=torch.float64)


WEIGHT, BIAS, OTHER, TABLE, EXPERTS = _drawn(2, 3, 4), _drawn(2), _drawn(1, 4), _drawn(3, 2, 5), _drawn(3, 4, 2)

BILINEAR: dict[str, Case] = {
    "the second is constant": (lambda x: F.bilinear(x, OTHER.expand(len(x), -1), WEIGHT, BIAS), (3,), None),
    "the first is constant": (lambda x: F.bilinear(OTHER[:, :3].expand(len(x), -1), x, WEIGHT), (4,), None),
    "a tensor contracted": (lambda x: torch.tensordot(x, TABLE, dims=([1, 2], [1, 0])), (2, 3), None),
    "one axis of a tensor": (lambda x: torch.tensordot(x, TABLE, dims=1), (2, 3), None),
    "several matrices": (lambda x: torch.linalg.multi_dot([x, WEIGHT[0], WEIGHT[1].mT]), (3,), None),
}


@pytest.mark.parametrize("name", BILINEAR)
def test_of_a_constant_they_are_linear(name: str) -> None:
    """Exact on small maps."""
    linear(BILINEAR[name])


@pytest.mark.parametrize(
    ("function", "shape"),
    [
        (lambda x: F.bilinear(x[..., :3], x, WEIGHT, BIAS), (4,)),
        (lambda x: F.bilinear(x[..., :3], torch.tanh(x), WEIGHT), (2, 4)),
        (lambda x: torch.tensordot(x[0], x[0].T, dims=1).unsqueeze(0).expand(len(x), -1, -1) + 0 * x, (2, 2)),
    ],
)
def test_of_two_that_move_they_need_a_range(function: object, shape: tuple[int, ...]) -> None:
    """No bound on all inputs; one that nothing refutes on the range of the data."""
    if shape == (2, 2):
        assert [a.atom.known for a in program(function, *shape).opaque] == []  # type: ignore[arg-type]
        return
    without_constant(function, *shape)  # type: ignore[arg-type]


def test_the_norm_of_a_form_is_not_exceeded() -> None:
    """Random and ascended pairs of vectors stay below; a form of rank one attains it."""
    bound = bilinear_norm(WEIGHT)
    best = 0.0
    for _ in range(50):
        u, v = _drawn(3), _drawn(4)
        for _ in range(20):  # alternating maximisation
            u = torch.linalg.svd(torch.einsum("kij,j->ki", WEIGHT, v)).Vh[0]
            v = torch.linalg.svd(torch.einsum("kij,i->kj", WEIGHT, u)).Vh[0]
        best = max(best, float(torch.einsum("kij,i,j->k", WEIGHT, u, v).norm()))
    assert 0.5 * bound < best <= bound
    a, b, c = _drawn(2), _drawn(3), _drawn(4)
    assert bilinear_norm(torch.einsum("k,i,j->kij", a, b, c)) == pytest.approx(
        math.prod(float(t.norm()) for t in (a, b, c)), rel=1e-9
    )


def test_rows_sorted_by_expert() -> None:
    """Linear while the shares are fixed; which expert a row goes to is known to jump."""
    ends = torch.tensor([1, 1, 3], dtype=torch.int32)

    def fixed(x: Tensor) -> Tensor:
        return torch.stack([torch.cat([r[:1] @ EXPERTS[0], r[1:] @ EXPERTS[2]]) for r in x])

    from normscope.graph.ir import Node, Ref
    from normscope.operators.expression import atom_expr, evaluate
    from normscope.operators.nonlinear import Input
    from normscope.operators.registry import Call, find_rule

    x = atom_expr(Input(0, "input"), (3, 4))
    value = torch.zeros(3, 2, dtype=torch.float64)
    for op in ("aten._grouped_mm.default", "transformers.grouped_mm_fallback.default"):
        rule = find_rule(op)
        assert rule is not None
        node = Node("y", op, (Ref("x"),))
        out = rule(Call(node, {"input": x, "weight": EXPERTS, "offs": ends}, value))
        probe = _drawn(3, 4)
        assert torch.allclose(evaluate(x, out)(probe), fixed(probe[None])[0], rtol=1e-12)
        moving = rule(Call(node, {"input": x, "weight": EXPERTS, "offs": x}, value))
        assert moving.atom.known
        assert "discontinuously" in moving.atom.reason
