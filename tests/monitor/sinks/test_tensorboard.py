"""TensorBoard reads what was written."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from normscope.core.errors import MissingDependencyError
from normscope.monitor.sinks.tensorboard import TensorBoard


def test_scalars_are_read_back(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoard(tmp_path)
    sink.log({"norm/a": 1.5, "product/norms_log10": -2.0}, step=3)
    sink.log({"norm/a": 2.5}, step=4)
    sink.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("norm/a")] == [(3, 1.5), (4, 2.5)]
    assert set(events.Tags()["scalars"]) == {"norm/a", "product/norms_log10"}


def test_without_tensorboard_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(MissingDependencyError, match=r"normscope\[tensorboard\]"):
        TensorBoard(tmp_path)


def test_a_resumed_run_has_each_point_once(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sink = TensorBoard(tmp_path)
    for step in range(1, 6):
        sink.log({"norm/a": float(step)}, step=step)
    sink.close()
    again = TensorBoard(tmp_path)
    again.resume(3)
    again.log({"norm/a": 40.0}, step=4)
    again.close()
    events = EventAccumulator(str(tmp_path)).Reload()
    assert [(e.step, e.value) for e in events.Scalars("norm/a")] == [(1, 1.0), (2, 2.0), (3, 3.0), (4, 40.0)]
