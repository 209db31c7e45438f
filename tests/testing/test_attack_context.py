"""Rows are found among the modules, and the groups of a normalizer are those it really averages over."""

from __future__ import annotations

import torch
from torch import nn

import normscope
from normscope.core.errors import InputError
from normscope.graph.inputs import ModelInputs
from normscope.testing.attack_context import find_calls, groups_of, only_normalizes, split_batch
from normscope.testing.hooked_model import HookedModel
from refuting import context, small


def test_rows_are_calls_of_modules() -> None:
    """Numbered where a module is called twice; what is no module of its own is told."""
    layer = nn.Linear(3, 3)
    model = nn.Sequential(layer, nn.Tanh(), layer, nn.Sequential(nn.ReLU()))
    hooked = HookedModel(model, ModelInputs((torch.ones(1, 3),)), [{"shape": (1, 3), "kind": "input"}])
    trace = hooked(torch.ones(1, 3, dtype=torch.float64))
    found = find_calls(["0#1", "0#2", "3", "gone"], hooked, trace)
    assert found["0#1"] == ("0", 0)
    assert found["0#2"] == ("0", 1)
    assert found["3"] == "the module does more than this"
    assert found["gone"] == "no module of that name"
    assert find_calls(["0"], hooked, trace)["0"] == "the module is called 2 times and has 1 rows"


def test_groups_are_checked_against_the_module() -> None:
    """Inputs are brought to the edge of the floor, group by group; what scaling a group changes is no group."""
    for norm, shape in ((nn.LayerNorm(6), (4, 3, 6)), (nn.GroupNorm(2, 4), (4, 4, 5)), (nn.RMSNorm(6), (4, 6))):
        x = torch.randn(shape)
        row = normscope.analyze(norm.eval(), x, points=1, ascent=0).normalizers[0]
        apply = norm.double()
        groups = groups_of(row, norm, x.double(), apply)
        assert groups is not None
        assert bool(groups.inside(groups.at_edge(x.double()), 4).all())
        assert not bool(groups.inside(0.5 * groups.at_edge(x.double()), 4).any())
        assert groups_of(row, norm, x.double(), lambda z: z) is None


def test_a_failing_attack_is_noted_and_the_others_go_on() -> None:
    """The reason is kept in one line."""
    here = context(*small())

    def fails(_: object) -> None:
        raise InputError("no such input\nmore")

    here.attempt("layers", fails)
    assert here.skipped == [("layers", "InputError: no such input")]


def test_samples_are_cut_along_the_batch() -> None:
    """All but an incomplete last part; what is not batched belongs to each."""
    batch = ModelInputs((torch.arange(6).reshape(3, 2), 7), {"mask": torch.ones(3)})
    samples = [[0, 1], [2, 3], [4, 5]]
    for size, expected in ((1, [[s] for s in samples]), (2, [samples[:2]]), (3, [samples])):
        parts = split_batch(batch, size)
        assert [p.args[0].tolist() for p in parts] == expected
        assert all(p.args[1] == 7 and p.kwargs["mask"].tolist() == [1.0] * size for p in parts)


class _Hand(nn.Module):
    """A normalizer without a telling name, and perhaps something after it."""

    def __init__(self, after: nn.Module) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.tensor([1.0, -2.0, 0.5, 3.0]))
        self.last = [after]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last[0](x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3) * self.scale)


def test_a_normalizer_is_told_by_what_it_does() -> None:
    """Whatever it is called; one with an activation in it does more."""
    x = torch.randn(4, 3)
    for after, only in ((nn.Identity(), True), (nn.ReLU(), False), (nn.GELU(), False)):
        model = nn.Sequential(nn.Linear(3, 4), _Hand(after), nn.Linear(4, 2)).eval()
        here = context(model, x, normscope.analyze(model, x, points=1, ascent=0, time=0))
        assert only_normalizes(here, ("1", 0)) is only
        assert not only_normalizes(here, ("0", 0))
