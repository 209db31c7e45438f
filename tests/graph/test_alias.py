"""Writing through a view: every operation found writes what torch itself writes into the memory."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from normscope.graph.alias import Geometry, WriteBack, place, write_back

VIEWS: dict[str, tuple[Callable[[Tensor], Tensor], str]] = {
    "itself": (lambda x: x, "reshape"),
    "flatten": (lambda x: x.view(-1), "reshape"),
    "unsqueeze": (lambda x: x.unsqueeze(1), "reshape"),
    "transpose": (lambda x: x.transpose(0, 2), "permute"),
    "movedim": (lambda x: x.movedim(0, 2), "permute"),
    "rows": (lambda x: x[1:3], "slice"),
    "every second": (lambda x: x[:, ::2], "slice"),
    "one row kept": (lambda x: x[:, 2:3], "slice"),
    "chunk": (lambda x: x.chunk(2, 2)[1], "slice"),
    "select": (lambda x: x[:, 1], "select"),
    "unbind": (lambda x: x.unbind(2)[3], "select"),
    "diagonal": (lambda x: x.diagonal(dim1=0, dim2=1), "put"),
    "two ranges": (lambda x: x[1:, :, 2:], "put"),
    "strided": (lambda x: x.as_strided((2, 5), (7, 3), 1), "put"),
    "windows": (lambda x: x.unfold(2, 2, 3), "put"),
    "empty": (lambda x: x[:, :0], "none"),
}


@pytest.mark.parametrize(("view", "kind"), VIEWS.values(), ids=VIEWS.keys())
def test_each_view_is_recognised_and_written_back(view: Callable[[Tensor], Tensor], kind: str) -> None:
    """Each view is recognised and written back."""
    parent = torch.arange(60.0).view(3, 4, 5) if kind != "put" else torch.arange(64.0).view(4, 4, 4)
    child = view(parent)
    value = -1 - torch.arange(float(child.numel())).view(child.shape)
    found = write_back(Geometry.of(child), Geometry.of(parent))
    assert found is not None
    assert found.kind == kind
    before = parent.clone()
    written = found.apply(parent, value)
    assert torch.equal(parent, before)
    view(before).copy_(value)
    assert torch.equal(written, before)


@st.composite
def _views(draw: st.DrawFn) -> tuple[Tensor, Tensor]:
    """Draw a tensor with dense memory in some order of axes, and a chain of two views of it."""
    shape = draw(st.lists(st.integers(1, 4), min_size=1, max_size=4))
    parent = (
        torch.arange(float(torch.Size(shape).numel())).view(shape).permute(draw(st.permutations(range(len(shape)))))
    )
    child = parent
    for _ in range(2):
        axis = draw(st.integers(0, child.ndim - 1)) if child.ndim else 0
        step = draw(st.sampled_from(["slice", "select", "permute", "unsqueeze", "none"]))
        if child.ndim and step == "slice":
            start = draw(st.integers(0, child.shape[axis] - 1))
            child = child[(slice(None),) * axis + (slice(start, None, draw(st.integers(1, 2))),)]
        elif child.ndim and step == "select":
            child = child.select(axis, draw(st.integers(0, child.shape[axis] - 1)))
        elif step == "permute":
            child = child.permute(draw(st.permutations(range(child.ndim))))
        elif step == "unsqueeze":
            child = child.unsqueeze(axis)
    return parent, child


@settings(max_examples=150, deadline=None, derandomize=True)
@given(_views())
def test_any_chain_of_views_is_written_back(pair: tuple[Tensor, Tensor]) -> None:
    """Any chain of views is written back."""
    parent, child = pair
    value = -1 - torch.arange(float(child.numel())).view(child.shape)
    found = write_back(Geometry.of(child), Geometry.of(parent))
    assert found is not None
    written = found.apply(parent.clone(), value)
    child.copy_(value)
    assert torch.equal(written, parent)


def test_what_cannot_be_followed_is_refused() -> None:
    """What cannot be followed is refused."""
    x = torch.zeros(4, 4)
    whole, part = Geometry.of(x), Geometry.of(x[1:])
    assert place(whole, part) is None  # entries outside
    assert place(Geometry.of(x.view(torch.int32)), whole) is None  # other dtype
    assert place(Geometry.of(x[:1]), Geometry.of(x[:1].expand(4, 4))) is None  # overlapping parent
    assert write_back(whole, part) is None
    assert write_back(part, whole) == WriteBack("slice", (0, 1, 4, 1))
