"""The state of the process: what is saved can be put back, and only what differs is touched."""

from __future__ import annotations

import gc
import random

import numpy as np
import pytest
import torch

from normscope.core import environment
from normscope.core.environment import (
    flags,
    quiet_vmap,
    rarely_collected,
    restore_flags,
    restore_rng,
    rng_state,
    same_rng,
)


def test_every_setting_is_put_back() -> None:
    """Each one changed, then restored."""
    saved = flags()
    assert {"default_dtype", "grad_enabled", "deterministic", "num_threads", "math_sdp", "autocast_cpu"} <= set(saved)
    other = {torch.float32: torch.float64, "highest": "medium"}
    try:
        for name, (_, put) in environment._FLAGS.items():
            if name != "num_threads":
                value = saved[name]
                put(not value if isinstance(value, bool) else other.get(value, 1))
                assert flags()[name] != saved[name], name
    finally:
        restore_flags(saved)
    assert flags() == saved


def test_equal_settings_are_not_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    """Setting some of them has side effects of its own."""

    def refuse(value: object) -> None:
        raise AssertionError(f"set to {value}")

    same = {name: (get, refuse) for name, (get, _) in environment._FLAGS.items()}
    monkeypatch.setattr(environment, "_FLAGS", same)
    restore_flags(flags())


def test_a_setting_that_cannot_be_told_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """And is not restored either."""

    def refuse() -> None:
        raise RuntimeError("mixed interfaces")

    monkeypatch.setattr(environment, "_FLAGS", {"odd": (refuse, lambda value: None)})
    assert flags() == {}
    restore_flags({"odd": True})


def test_every_generator_is_put_back() -> None:
    """The next draws are the same again."""
    state = rng_state()
    first = random.random(), float(np.random.rand()), float(torch.rand(1))
    restore_rng(state)
    assert first == (random.random(), float(np.random.rand()), float(torch.rand(1)))
    restore_rng(state)


def test_an_accelerator_without_many_states(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that has a single generator is read and restored through it."""

    class Device:
        state = 1

        @classmethod
        def get_rng_state(cls) -> torch.Tensor:
            return torch.tensor([cls.state], dtype=torch.uint8)

        @classmethod
        def set_rng_state(cls, state: torch.Tensor) -> None:
            cls.state = int(state)

    monkeypatch.setattr(environment, "_accelerator", lambda: Device)
    state = rng_state()
    Device.state = 2
    restore_rng(state)
    assert Device.state == 1


def test_a_draw_is_seen() -> None:
    """From each of the generators."""
    state = rng_state()
    for draw in (random.random, np.random.rand, lambda: torch.rand(1)):
        assert same_rng(state)
        draw()
        assert not same_rng(state)
        restore_rng(state)


def test_garbage_is_collected_as_before_also_after_an_interruption() -> None:
    """A computation that is stopped leaves no setting of its own."""
    before = gc.get_threshold()
    with pytest.raises(KeyboardInterrupt), rarely_collected():
        raise KeyboardInterrupt
    assert gc.get_threshold() == before


def test_vmap_tells_where_it_is_slow_again_after_a_quiet_block() -> None:
    """Its switch is one for the whole process, and filters of warnings do not show it."""

    def slow() -> None:
        torch.func.vmap(lambda x: x.take(torch.tensor([0])))(torch.ones(2, 3))

    with quiet_vmap():
        slow()
    with pytest.raises(KeyboardInterrupt), quiet_vmap():
        raise KeyboardInterrupt
    with pytest.warns(UserWarning, match="performance drop"):
        slow()
