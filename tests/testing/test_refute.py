"""``refute`` runs on a user's model, changes nothing, and says in one line what it cannot take."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fingerprints import fingerprint
from normscope.core.errors import InputError
from normscope.testing import refute
from refuting import small

pytestmark = pytest.mark.usefixtures("usual_balls")


class _RMSNorm(nn.Module):
    """Written out, as in Llama."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-3.0, 2.0, n))

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the root of the mean square."""
        wide = x.to(torch.float32)
        return self.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


@pytest.mark.turns(2)
def test_a_model_is_attacked_everywhere_and_left_alone() -> None:
    """Tables, curves, totals and weights; text and JSON agree."""
    model, data, _ = small()
    before = fingerprint(model, data)
    found = refute(model, data, name="small", points=1, ascent=1, effort=0.3)
    assert fingerprint(model, data) == before
    assert found.refuted == ()
    assert found.skipped == ()
    assert {a.table for a in found.attacks} == {"layers", "normalizers", "depth", "end_to_end", "around", "weights"}
    assert json.loads(found.to_json())["attacks"][0]["refuted"] is False
    assert str(found).startswith("small: ")


def test_a_written_out_normalizer_is_attacked_like_any_other() -> None:
    """Its scale counts: the attack comes near the proved constant."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 6), _RMSNorm(6), nn.Linear(6, 2)).eval()
    found = refute(model, torch.randn(4, 4), points=1, ascent=1, effort=0.3, weights=False)
    (proved,) = [a for a in found.attacks if a.table == "normalizers" and a.number == "proved"]
    assert proved.ratio == pytest.approx(1.0, abs=1e-3)
    assert not proved.refuted


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"model": 3, "data": torch.ones(2, 4)}, "Expected a torch.nn.Module, got int."),
        ({"data": None}, "needs data"),
        ({"seed": -1}, "seed"),
        ({"effort": 0.0}, "positive effort"),
        ({"mode": "frozen-batch"}, "got 'frozen-batch'"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_bad_arguments_are_told(arguments: dict[str, Any], message: str) -> None:
    """In one line."""
    given: dict[str, Any] = {"model": small()[0], "data": torch.ones(2, 4), **arguments}
    with pytest.raises(InputError, match=message):
        refute(given.pop("model"), given.pop("data"), **given)


class _Cosine(nn.Module):
    """A layer inside a module that does more before and after it."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        """Scale the cosines."""
        return 7 * nn.functional.linear(nn.functional.normalize(x, dim=-1, eps=0.1), self.weight)


def test_a_layer_is_not_held_against_a_module_that_does_more() -> None:
    """The place of the layer along depth lies inside the module: what the module gives says nothing about it."""
    model = nn.Sequential(nn.Linear(5, 4), _Cosine()).eval()
    found = refute(model, torch.randn(4, 5), points=1, ascent=0, time=0, effort=0.2, weights=False)
    assert [str(a) for a in found.refuted] == []
    assert ("depth[1]", "_Cosine does more than a linear map") in found.skipped
