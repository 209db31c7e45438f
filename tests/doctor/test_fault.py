"""Why a value is no number."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from checking import noise
from networks import Lambda
from normscope.doctor.fault import FIXES, explain_fault, fault_of
from normscope.doctor.subject import examine
from normscope.graph.ir import Node, Ref


@pytest.mark.parametrize(
    ("op", "given", "kind", "entries"),
    [
        ("rsqrt", [4.0, 0.0, -1.0], "zero", (1,)),
        ("rsqrt", [4.0, -1.0], "negative", (1,)),
        ("sqrt", [-1.0, 2.0], "negative", (0,)),
        ("log", [1.0, 0.0], "negative", (1,)),
        ("reciprocal", [0.0, 1.0], "zero", (0,)),
        ("exp", [100.0, 1.0], "overflow", ()),
    ],
)
def test_the_entries_that_are_the_cause_give_no_number(
    op: str, given: list[float], kind: str, entries: tuple[int, ...]
) -> None:
    """And those alone, as torch computes it."""
    x = torch.tensor(given)
    fault = fault_of(Node("y", f"aten.{op}.default", (Ref("x"),)), {"x": x})
    assert (fault.kind, fault.entries) == (kind, entries)
    result = getattr(torch, op)(x)
    assert all(not torch.isfinite(result[i]) for i in entries)
    assert kind in FIXES


def _standardize(s: Lambda, x: Tensor) -> Tensor:
    return s.fc((x - s.mean) / s.std)


def _shrunk(s: Lambda, x: Tensor) -> Tensor:
    return s.fc(x / x.square().sum(-1, keepdim=True).sqrt())


def test_the_buffer_behind_it_is_named_with_its_entry() -> None:
    """A deviation of zero; the data is not the cause."""
    model = Lambda(_standardize, fc=nn.Linear(3, 2), mean=torch.zeros(3), std=torch.tensor([1.0, 0.0, 2.0]))
    subject = examine(model, noise(8, 3))
    assert "std is zero at channel 1, and no eps is added" in subject.non_finite
    assert "the data is not the cause" in subject.non_finite_fix


def test_a_sample_whose_length_is_zero() -> None:
    """Here the data is."""
    x = noise(8, 3)
    x[2] = 0.0
    subject = examine(Lambda(_shrunk, fc=nn.Linear(3, 2)), x)
    assert "1 of 8 entries of its input are zero" in subject.non_finite
    assert "not the cause" not in subject.non_finite_fix


def test_an_operation_nobody_knows_is_named_at_least() -> None:
    """Without a reason."""
    from normscope.graph.ir import Graph

    node = Node("y", "aten.lgamma.default", (Ref("x"),))
    fault = fault_of(node, {"x": torch.zeros(2)})
    assert explain_fault(fault, Graph((Node("x", "input"), node)), {})[0].startswith("lgamma is the first operation")


def test_a_normalizer_without_eps_and_a_weight_of_length_zero() -> None:
    """Groups of equal entries; the parameter behind a norm is named."""
    x = noise(8, 3)
    x[2] = 1.0
    subject = examine(nn.Sequential(nn.LayerNorm(3, eps=0.0), nn.Linear(3, 2)), x)
    assert "all entries of some group are equal, and no eps is added" in subject.non_finite
    model = Lambda(lambda s, x: x @ (s.v / s.v.norm(dim=1, keepdim=True)).t(), v=nn.Parameter(noise(4, 3)))
    with torch.no_grad():
        model.v[1] = 0.0
    subject = examine(model, noise(8, 3))
    assert "of v is zero at channel 1" in subject.non_finite
    assert "the data is not the cause" in subject.non_finite_fix
