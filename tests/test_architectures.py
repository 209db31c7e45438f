"""A zoo of architectures: captured, every normalizer found, every operation understood, every certificate true."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import normscope
from architectures import ARCHITECTURES, Architecture, Inputs
from fingerprints import fingerprint
from rotation import todays

#: Quick settings: two points, a few steps of search.
QUICK: dict[str, Any] = {"points": 2, "ascent": 5, "stacked": False, "without_normalizers": False}


def test_the_zoo_is_large() -> None:
    """At least forty architectures."""
    assert len(ARCHITECTURES) >= 40


def _tensors(inputs: Inputs) -> tuple[Tensor, ...]:
    """Return the tensors of some inputs."""
    if isinstance(inputs, Tensor):
        return (inputs,)
    return tuple(inputs.values()) if isinstance(inputs, dict) else inputs


def _called(model: nn.Module, inputs: Inputs) -> Tensor:
    """Run a model and return its floating outputs, one row per sample."""
    out = model(**inputs) if isinstance(inputs, dict) else model(*_tensors(inputs))
    found = list(_floats(out))
    return torch.cat([t.reshape(len(_tensors(inputs)[0]), -1) for t in found], 1)


def _floats(value: Any) -> Iterable[Tensor]:
    """Yield the floating tensors of an output."""
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _floats(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from _floats(item)


def _trained(model: nn.Module, inputs: Inputs) -> None:
    """Take a few steps of training, then make some weights three times as large, as long training does."""
    generator = torch.Generator().manual_seed(5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model.train()
        for _ in range(2):
            optimizer.zero_grad()
            (_called(model, inputs) - 1.0).square().mean().backward()
            optimizer.step()
        model.eval()
    model.zero_grad(set_to_none=True)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                heavy = torch.rand(parameter.shape[0], *(1,) * (parameter.ndim - 1), generator=generator) < 0.2
                parameter.mul_(torch.where(heavy, 3.0, 1.0))


def _check(architecture: Architecture, model: nn.Module, inputs: Inputs) -> None:
    """Analyze a model and hold everything that is certified against what it attains."""
    before = fingerprint(model, *_tensors(inputs))
    result = normscope.analyze(model, inputs, **QUICK)
    assert fingerprint(model, *_tensors(inputs)) == before, "the user's model was changed"
    assert Counter(n.kind for n in result.normalizers) == architecture.normalizers
    refused = {o.op.split(".")[1] for o in result.coverage.opaque if o.op.startswith("aten.")}
    values = result.end_to_end
    everywhere, floor = values["global"], values["variance_floor"]
    assert everywhere is not None
    assert floor is not None
    if architecture.refused:
        assert architecture.refused <= refused
        assert everywhere.log == floor.log == math.inf
        return
    assert result.coverage.opaque == ()
    assert result.coverage.understood == result.coverage.ops
    assert (everywhere.log < math.inf) == architecture.bounded
    assert floor.log < math.inf
    assert floor.log <= everywhere.log
    for upper, lower in (("global", "lower_everywhere"), ("variance_floor", "lower"), ("variance_floor", "jacobian")):
        attained = values[lower]
        assert attained is not None
        assert attained.log <= values[upper].log  # type: ignore[union-attr]
    _hold_pairs(model, inputs, everywhere.log, floor.log)


def _hold_pairs(model: nn.Module, inputs: Inputs, everywhere: float, floor: float) -> None:
    """Hold pairs of inputs, run by the user's own model in float64, against both bounds."""
    tensors = _tensors(inputs)
    if not all(t.is_floating_point() for t in tensors):
        return  # tokens: the constant is with respect to the embedding, which the search above has changed
    wide = copy.deepcopy(model).double().eval()
    generator = torch.Generator().manual_seed(6)
    data = [t.double() for t in tensors]
    far = [torch.randn(t.shape, generator=generator, dtype=torch.float64) * 5.0 for t in data]
    near = [t + 1e-2 * torch.randn(t.shape, generator=generator, dtype=torch.float64) for t in data]
    with torch.no_grad():
        images = {name: _called(wide, tuple(x)) for name, x in (("data", data), ("far", far), ("near", near))}

    def quotient(a: list[Tensor], b: list[Tensor], fa: Tensor, fb: Tensor) -> float:
        distance = sum(((x - y).flatten(1).square().sum(1) for x, y in zip(a, b, strict=True)), torch.zeros(len(fa)))
        noise = 1e-6 * (fa.norm(dim=1) + fb.norm(dim=1))  # some layers compute in float32 whatever the input
        return float((((fa - fb).norm(dim=1) - noise) / distance.sqrt()).max())

    shifted = [t.roll(1, 0) for t in data]
    inside = quotient(data, shifted, images["data"], images["data"].roll(1, 0))
    outside = max(
        inside,
        quotient(data, near, images["data"], images["near"]),
        quotient(data, far, images["data"], images["far"]),
    )
    assert math.log(max(inside, 1e-300)) <= floor
    assert math.log(max(outside, 1e-300)) <= everywhere


@pytest.mark.turns(6)
@pytest.mark.parametrize("name", todays(ARCHITECTURES, 4))
def test_an_architecture_as_it_is_made(name: str) -> None:
    """With the weights it is initialized with; others every day."""
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build()
    _check(architecture, model.eval(), inputs)


@pytest.mark.turns(5)
@pytest.mark.parametrize("name", todays((n for n, a in ARCHITECTURES.items() if not a.refused), 2))
def test_an_architecture_after_training(name: str) -> None:
    """After a few steps of training and with some rows of its weights three times as large; others every day."""
    architecture = ARCHITECTURES[name]
    model, inputs = architecture.build()
    _trained(model, inputs)
    _check(architecture, model, inputs)
