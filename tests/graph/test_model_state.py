"""What a model holds is found wherever it lies, once, and data are left alone."""

from __future__ import annotations

import argparse
import functools
import random
import threading
from collections import OrderedDict, deque
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from normscope.graph import model_state as module
from normscope.graph.model_state import DEPTH, Held, Slots


class Noise:
    """A plain object."""

    def __init__(self, **attributes: Any) -> None:
        vars(self).update(attributes)

    def draw(self) -> None:
        """Do nothing."""


@dataclass(slots=True, frozen=True)
class Slotted:
    """An object without a dictionary, that refuses to be written."""

    source: Any = None
    counts: list[int] = field(default_factory=list)


def _model(**attributes: Any) -> nn.Module:
    model = nn.Identity()
    for name, value in attributes.items():
        object.__setattr__(model, name, value)
    return model


def _containers(model: nn.Module) -> set[int]:
    return {id(container) for _, _, container in Held(model).containers}


HOLDERS = {
    "attribute": lambda g: g,
    "dict": lambda g: {"a": {"b": g}},
    "ordered": lambda g: OrderedDict(a=deque([g])),
    "list": lambda g: [[0, [g]]],
    "tuple": lambda g: (0, (g,)),
    "object": lambda g: Noise(inner=[Noise(source=g)]),
    "namespace": lambda g: [SimpleNamespace(a=argparse.Namespace(b=g))],
    "slots": lambda g: {"a": Slotted(g)},
    "method": lambda g: [Noise(source=g).draw],
    "builtin": lambda g: {"draw": g.random},
    "partial": lambda g: [functools.partial(print, 0, source=g)],
}


@pytest.mark.parametrize("holder", HOLDERS)
def test_generators_are_found_wherever_they_lie(holder: str) -> None:
    """Once, with tensors and arrays beside them."""
    generator = random.Random(0)
    model = _model(at=HOLDERS[holder](generator), again=[[generator]])
    assert [found for _, found in Held(model).generators] == [generator]


def test_names_say_where_something_lies() -> None:
    """As one would write it, with dots."""
    model = nn.Sequential(nn.Linear(1, 1, bias=False))
    model[0].cache = {"k": [torch.zeros(1)], (1, 2): {"n": np.zeros(2)}}
    held = Held(model)
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
    held = Held(model)
    assert len(held.modules) == 2
    assert sum(container is ring for _, _, container in held.containers) == 1


def test_modules_that_were_not_registered_count_as_well() -> None:
    """A list of layers, a teacher hidden from the parameters."""
    teacher = nn.Sequential(nn.BatchNorm1d(2))
    layers = [nn.Linear(2, 2)]
    held = Held(_model(layers=layers, teacher=Noise(model=teacher)))
    assert [name for name, _ in held.modules] == ["", "layers.0", "teacher.model", "teacher.model.0"]
    assert "teacher.model.0.running_mean" in dict(held.tensors)


def test_data_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lists below the first level, large tensors there, large arrays, and all that is too deep."""
    monkeypatch.setattr(module, "LARGE", 100)
    monkeypatch.setattr(module, "ENTRIES", 20)
    large, small = torch.zeros(101), torch.zeros(100)
    model = _model(first=large, at=[torch.zeros(101)], below=[[large.clone(), small]], array=np.zeros(101))
    held = Held(model)
    assert [name for name, _ in held.tensors] == ["first", "at.0", "below.0.1"]
    assert held.arrays == []
    long, longer = [torch.zeros(1)] * 21, [0] * 101
    model = _model(data=[long, longer])
    assert Held(model).tensors == []
    assert id(long) in _containers(model)  # what it holds is put back, but not looked into
    assert id(longer) not in _containers(model)
    assert len(Held(_model(long=[torch.zeros(1) for _ in range(30)])).tensors) == 30  # at the first level


def test_depth_and_copies_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain of lists ends somewhere, and so does what is copied."""
    chain: list[Any] = [random.Random(0)]
    for _ in range(DEPTH - 1):
        chain = [chain]
    assert len(Held(_model(chain=chain)).generators) == 1
    assert Held(_model(chain=[chain])).generators == []
    monkeypatch.setattr(module, "ROOM", 16)
    many = [[torch.zeros(2) for _ in range(5)]]
    assert len(Held(_model(many=many)).tensors) == 2


@pytest.mark.parametrize("package", ["lightning.pytorch.trainer", "wandb.sdk"])
def test_trainers_and_loggers_are_not_followed(package: str) -> None:
    """They hold everything, and threads write to them; their attributes are put back as those of any object."""
    kind = type("Trainer", (), {"__module__": package})
    trainer = kind()
    trainer.metrics = {"a": 1}
    model = _model(trainer=trainer, deep=[kind()])
    assert id(vars(trainer)) in _containers(model)
    assert id(trainer.metrics) not in _containers(model)
    assert id(vars(model.deep[0])) not in _containers(model)


def test_what_threads_share_is_not_followed() -> None:
    """An object with a lock is written by several."""
    shared = Noise(lock=threading.Lock(), table={})
    assert id(shared.table) not in _containers(_model(shared=shared))
    assert id(vars(shared)) not in _containers(_model(shared=[shared]))


def test_slots_are_read_and_written() -> None:
    """Also where the object refuses, and where some are not set."""

    class Base:
        __slots__ = ("__hidden", "first")

    class Derived(Base):
        __slots__ = ("__weakref__", "second")

    owner = Derived()
    owner.first = 1
    slots = Slots(owner)
    assert set(slots.names) >= {"first", "second", "_Base__hidden"}
    assert slots.items() == [("first", 1)]
    slots.clear()
    assert len(slots) == 0
    slots.update([("second", 2)])
    assert owner.second == 2
    frozen = Slotted(1)
    Slots(frozen).update([("source", 2)])
    assert frozen.source == 2
