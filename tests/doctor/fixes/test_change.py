"""Drafts of new weights."""

from __future__ import annotations

import torch
from torch import nn

from checking import noise
from networks import Lambda
from normscope.doctor.fixes.change import Change, Draft
from normscope.doctor.subject import examine


def test_tensors_are_known_by_what_they_are_and_how_often_they_are_read() -> None:
    """A weight used twice is not free."""
    model = Lambda(lambda s, x: s.a(s.a(x)) + s.b(x), a=nn.Linear(3, 3), b=nn.Linear(3, 3))
    draft = Draft(examine(model, noise(2, 3)), dict(model.state_dict()))
    assert draft.name_of(model.b.bias) == "b.bias"
    assert draft.name_of(torch.ones(3)) == ""
    assert draft.is_used_once("b.weight")
    assert not draft.is_used_once("a.weight")
    assert not draft.is_used_once("c.weight")


def test_a_change_keeps_the_dtype_and_leaves_the_model_alone() -> None:
    """Values are computed in float64 and stored as the model stores them."""
    model = nn.Linear(2, 2)
    before = model.weight.detach().clone()
    draft = Draft(examine(model), dict(model.state_dict()))
    draft.apply(Change("fold", "", "doubled", {"weight": draft.double("weight") * 2}))
    assert draft.state["weight"].dtype is torch.float32
    assert torch.equal(draft.state["weight"], 2 * before)
    assert torch.equal(model.weight, before)
