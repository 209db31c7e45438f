"""What a forward takes, what the layers tell, and where a run failed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from fingerprints import fingerprint
from normscope.graph.signature import InnermostModule, input_device, input_dtype, signature_of, sized_layers


class Many(nn.Module):
    """A forward with every kind of parameter."""

    def forward(
        self, a: Tensor, b: Tensor, /, c: Tensor, d: int = 1, *rest: Tensor, e: int, f: int = 2, **more: int
    ) -> Tensor:
        """Add up."""
        return a + b + c


def test_every_kind_of_parameter() -> None:
    """Required ones are positional and have no default."""
    found = signature_of(Many())
    assert found.required == ("a", "b", "c")
    assert found.keywords == ("c", "d", "e", "f")
    assert found.any_positional
    assert found.any_keyword


def test_wrapped_and_unreadable_forwards() -> None:
    """A compiled model is asked for the one inside; of what cannot be read everything is possible."""
    assert signature_of(torch.compile(nn.Linear(2, 2))).required == ("input",)  # type: ignore[arg-type]
    odd = nn.Identity()
    odd.forward = type  # type: ignore[assignment, method-assign]
    assert signature_of(odd).any_keyword


def test_sized_layers_come_in_order_of_definition() -> None:
    """Activations and containers tell nothing."""
    model = nn.Sequential(nn.ReLU(), nn.Sequential(nn.Conv1d(2, 3, 1), nn.BatchNorm1d(3)), nn.GRU(3, 4), nn.Dropout())
    assert [path for path, _ in sized_layers(model)] == ["1.0", "1.1", "2"]


def test_dtype_and_device_of_the_input() -> None:
    """Those of the parameters, the usual ones if there are none."""
    assert input_dtype(nn.Linear(2, 2).to(torch.bfloat16)) == torch.bfloat16
    assert input_dtype(nn.ReLU()) == torch.float32
    assert input_device(nn.Linear(2, 2, device="meta")).type == "meta"
    assert input_device(nn.ReLU()).type == "cpu"


def test_the_failing_layer_is_found() -> None:
    """Also in a container, and nothing is left behind."""
    model = nn.ModuleDict({"body": nn.Sequential(nn.ReLU(), nn.Linear(4, 2))})
    before = fingerprint(model)
    where = InnermostModule(model)
    with pytest.raises(RuntimeError), where:
        model["body"](torch.zeros(1, 3))
    assert where.text == "layer body.1, Linear(in_features=4, out_features=2, bias=True), got (1, 3)"
    fine = InnermostModule(model)
    with fine:
        model["body"](torch.zeros(1, 4))
    assert fine.text == ""
    assert fingerprint(model) == before


def test_wrappers_take_what_the_module_inside_takes() -> None:
    """Labels beside the input are no argument because a wrapper takes any."""
    assert signature_of(nn.DataParallel(nn.Linear(2, 2))) == signature_of(nn.Linear(2, 2))
