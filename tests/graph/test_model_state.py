"""What a model holds is found wherever it lies, once, and data are left alone."""

from __future__ import annotations

import argparse
import random
import threading
from collections import OrderedDict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normscope.graph import model_state as module
from normscope.graph.model_state import DEPTH, GeneratorState, ModelState


class Noise:
    """A plain object."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)


def _model(**attributes: Any) -> nn.Module:
    model = nn.Identity()
    for name, value in attributes.items():
        object.__setattr__(model, name, value)
    return model


def _containers(model: nn.Module) -> set[int]:
    return {id(container) for _, _, container in ModelState(model).containers}


HOLDERS = {
    "attribute": lambda g: g,
    "dict": lambda g: {"a": {"b": g}},
    "ordered": lambda g: OrderedDict(a=deque([g])),
    "list": lambda g: [[0, [g]]],
    "tuple": lambda g: (0, (g,)),
    "object": lambda g: Noise(inner=[Noise(source=g)]),
    "namespace": lambda g: [SimpleNamespace(a=argparse.Namespace(b=g))],
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_generators_are_found_wherever_they_lie(holder: str) -> None:
    """Once, with tensors and arrays beside them."""
    generator = random.Random(0)
    model = _model(at=HOLDERS[holder](generator), again=[[generator]])
    assert [found for _, found in ModelState(model).generators] == [generator]


def test_names_say_where_something_lies() -> None:
    """As one would write it, with dots."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    model[0].cache = {"k": [torch.zeros(1)], (1, 2): {"n": np.zeros(2)}}
    held = ModelState(model)
    assert [name for name, _ in held.tensors] == ["0.weight", "0.cache.k.0"]
    assert [name for name, _ in held.arrays] == ["0.cache.tuple.n"]


def test_cycles_end() -> None:
    """Also those that come back to the model."""
    model = nn.Sequential(nn.Linear(1, 1))
    ring: dict[str, Any] = {"model": model}
    ring["ring"] = [ring]
    model[0].ring = ring
    noise = Noise(layer=model[0], ring=ring)
    ring["noise"] = noise
    held = ModelState(model)
    assert len(held.modules) == 2
    assert sum(container is ring for _, _, container in held.containers) == 1


def test_modules_that_were_not_registered_count_as_well() -> None:
    """A list of layers, a teacher hidden from the parameters."""
    teacher = nn.Sequential(nn.BatchNorm1d(2))
    layers = [nn.Linear(2, 2)]
    held = ModelState(_model(layers=layers, teacher=Noise(model=teacher)))
    assert [name for name, _ in held.modules] == ["", "layers.0", "teacher.model", "teacher.model.0"]
    assert "teacher.model.0.running_mean" in dict(held.tensors)


def test_data_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lists below the first level are put back, but not looked into."""
    monkeypatch.setattr(module, "ENTRIES", 20)
    long = [torch.zeros(1)] * 21
    model = _model(data=[long])
    assert ModelState(model).tensors == []
    assert id(long) in _containers(model)
    assert len(ModelState(_model(long=[torch.zeros(1) for _ in range(30)])).tensors) == 30  # at the first level


def test_depth_and_copies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of lists ends somewhere, and so does what is copied."""
    chain: list[Any] = [random.Random(0)]
    for _ in range(DEPTH - 1):
        chain = [chain]
    assert len(ModelState(_model(chain=chain)).generators) == 1
    assert ModelState(_model(chain=[chain])).generators == []
    monkeypatch.setattr(module, "ROOM", 16)
    many = [[torch.zeros(2) for _ in range(5)]]
    assert len(ModelState(_model(many=many)).tensors) == 2


def test_what_threads_share_is_not_followed() -> None:
    """An object with a lock is written by several."""
    shared = Noise(lock=threading.Lock(), table={})
    assert id(shared.table) not in _containers(_model(shared=shared))


Draw = Callable[[Any], Any]
KINDS: dict[str, tuple[Any, Draw]] = {
    "torch": (lambda: torch.Generator().manual_seed(3), lambda g: torch.randn(5, generator=g).tolist()),
    "python": (lambda: random.Random(3), lambda g: [g.gauss(0, 1) for _ in range(5)]),  # keeps a second number
    "legacy": (lambda: np.random.RandomState(3), lambda g: g.standard_normal(5).tolist()),
    "numpy": (lambda: np.random.default_rng(3), lambda g: g.integers(9, size=5).tolist()),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_numbers_come_again(kind: str) -> None:
    """From the middle of a stream as well."""
    make, draw = KINDS[kind]
    generator = make()
    draw(generator)
    state = GeneratorState(generator)
    assert state.same()
    first, second = draw(generator), draw(generator)
    assert first != second
    assert not state.same()
    for _ in range(2):
        state.restore()
        assert state.same()
        assert [draw(generator), draw(generator)] == [first, second]


def test_what_draws_from_the_system_has_no_state() -> None:
    """It cannot be set back, and need not be."""
    assert ModelState(_model(source=random.SystemRandom())).generators == []
