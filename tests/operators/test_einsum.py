"""Einstein sums: the same as the matrix products they are."""

from __future__ import annotations

import pytest
import torch

from networks import points, spectral_norm
from normscope.operators.einsum import labels
from operators.refute import Case, linear, nonlinear, program, without_constant

W, STACK = points(4, 3), points(2, 4, 3)
LINEAR: dict[str, Case] = {
    "projection": (lambda x: torch.einsum("bi,ij->bj", x, W), (4,), spectral_norm(W)),
    "constant first": (lambda x: torch.einsum("ij,bi->bj", W, x), (4,), spectral_norm(W)),
    "tokens": (lambda x: torch.einsum("bti,ij->btj", x, W), (5, 4), spectral_norm(W)),
    "dots": (lambda x: torch.einsum("...i,ij->...j", x, W), (2, 5, 4), spectral_norm(W)),
    "heads": (lambda x: torch.einsum("bhti,hij->bhtj", x, STACK), (2, 5, 4), max(spectral_norm(m) for m in STACK)),
    "permuted result": (lambda x: torch.einsum("bti,ij->bjt", x, W), (5, 4), spectral_norm(W)),
    "implicit result": (lambda x: torch.einsum("bi,ij", x, W), (4,), spectral_norm(W)),
    "sum over tokens": (lambda x: torch.einsum("bti,ij->bj", x, W), (9, 4), 3 * spectral_norm(W)),
    "transpose": (lambda x: torch.einsum("bij->bji", x), (2, 3), 1.0),
}  # fmt: skip


@pytest.mark.parametrize("name", LINEAR)
def test_sums_with_constants(name: str) -> None:
    """Linear: exact."""
    linear(LINEAR[name])


def test_two_operands_that_depend_on_the_input() -> None:
    """Scores of attention: quadratic, finite after a normalizer."""
    without_constant(lambda x: torch.einsum("bid,bjd->bij", x, x), 3, 4)
    nonlinear((lambda x: torch.einsum("bid,bjd->bij", x.tanh(), x.sigmoid()), (3, 4), None))


def test_diagonals_have_no_rule() -> None:
    """A label twice in one operand takes a diagonal: listed."""
    found = program(lambda x: torch.einsum("bii->bi", x), 3, 3)
    assert [e.atom.known for e in found.opaque] == [False] or found.opaque == []


@pytest.mark.parametrize(
    ("equation", "ranks", "expected"),
    [
        ("ij,jk->ik", [2, 2], (["ij", "jk"], "ik")),
        ("ij,jk", [2, 2], (["ij", "jk"], "ik")),
        ("ba,b", [2, 1], (["ba", "b"], "a")),
        ("ii->i", [2], None),
        ("ij,jk->ik", [2], None),
        ("ij->ji", [3], None),
    ],
)
def test_labels(equation: str, ranks: list[int], expected: object) -> None:
    """Each operand's labels and the result's, as torch reads them."""
    assert labels(equation, ranks) == expected
