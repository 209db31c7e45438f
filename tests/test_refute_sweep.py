"""No certified number of any architecture is refuted, whatever state its normalizers are in."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from torch import nn

from architectures import ARCHITECTURES, Inputs
from more_architectures import MORE
from normscope.testing import refute
from normscope.testing.normalizer_states import with_random_normalizers, with_zero_normalizers
from rotation import todays

pytestmark = pytest.mark.usefixtures("usual_balls")

BUILDS: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    **{name: architecture.build for name, architecture in ARCHITECTURES.items()},
    **MORE,
}
STATES: dict[str, Callable[[nn.Module], nn.Module]] = {
    "random": lambda model: with_random_normalizers(model, 0),
    "half zero": lambda model: with_zero_normalizers(with_random_normalizers(model, 0), 1),
    "zero": with_zero_normalizers,
}


def test_the_sweep_is_wide() -> None:
    """At least sixty architectures, most of them from transformers."""
    assert len(BUILDS) >= 60
    assert len(MORE) >= 40


def _sweep(name: str, state: str, effort: float) -> None:
    """Attack one architecture."""
    model, inputs = BUILDS[name]()
    found = refute(STATES[state](model.eval()), inputs, name=f"{name}, {state}", effort=effort, points=2, ascent=5)
    assert found.attacks
    assert found.refuted == (), str(found)


@pytest.mark.slow
@pytest.mark.parametrize("state", STATES)
@pytest.mark.parametrize("name", BUILDS)
def test_nothing_of_an_architecture_is_refuted(name: str, state: str) -> None:
    """Rows, curves, totals and weights."""
    _sweep(name, state, 1.0)


@pytest.mark.turns(3)
def test_nothing_of_one_architecture_is_refuted() -> None:
    """Another one every day."""
    ((name, state),) = todays(((name, state) for name in BUILDS for state in STATES), 1)[:1]
    _sweep(name, state, 0.2)
