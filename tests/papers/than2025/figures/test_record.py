"""Recording a run of a figure: killed at any moment it is readable, and goes on to the same curve."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from normscope.core.errors import InputError
from normscope.monitor.run import Run
from normscope.papers.than2025.figures.record import enlarged, into_unit_ball, record, training_data
from normscope.papers.than2025.figures.training_setting import settings_of

SETTING = replace(
    settings_of("fig1", "smoke")[0], arguments={"width": 16, "in_features": 64}, examples=640, epochs=4, probes=4
)
NORMALIZED = replace(SETTING, arguments=dict(SETTING.arguments) | {"norm": "bn"}, epochs=2, probes=3)
PROGRAM = """
import sys
from pathlib import Path
from dataclasses import replace
import torch
torch.set_num_threads(1)
from normscope.papers.than2025.figures.record import record
from normscope.papers.than2025.figures.training_setting import settings_of
setting = replace(settings_of("fig1", "smoke")[0], arguments={"width": 16, "in_features": 64}, examples=640, epochs=4,
                  probes=4)
record(setting, Path(sys.argv[1]), certify=False)
"""


def _measured(run: Run) -> dict[str, list[tuple[int, float]]]:
    """Return every metric but the clocks, with its steps."""
    names = [name for name in run.names if not name.startswith("clock/")]
    return {name: list(zip(map(int, s.steps), map(float, s.values), strict=True)) for name in names
            for s in [run.series(name)]}  # fmt: skip


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run that was never stopped, made by this process."""
    return record(SETTING, tmp_path_factory.mktemp("unbroken"), certify=False)


def test_it_measures_what_the_figure_shows(unbroken: Run) -> None:
    """At the start and as often as the setting says, and the loss at every step."""
    assert len(unbroken.series("train/loss")) == 20
    assert list(unbroken.series("product/norms_log10").steps) == [0, 5, 10, 15, 20]
    norms = unbroken.group("norm")
    assert len(norms) == 10
    product = sum(np.log10(s.values) for s in norms.values())
    assert product == pytest.approx(unbroken.series("product/norms_log10").values, abs=1e-3)
    accuracy = unbroken.series("probe/accuracy").values
    assert accuracy[-1] > accuracy[0]


@pytest.mark.turns(5)
def test_killed_at_any_moment_it_is_readable_and_goes_on_to_the_same_curve(unbroken: Run, tmp_path: Path) -> None:
    """SIGKILL while another process trains; then again with the same setting."""
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(tmp_path)], stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 120
    metrics = tmp_path / "metrics.jsonl"
    while time.monotonic() < deadline and not (metrics.exists() and metrics.read_bytes().count(b"train/loss") >= 7):
        time.sleep(0.01)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    torn = Run.open(tmp_path)
    before = torn.series("train/loss").values
    assert len(before) >= 7
    assert list(before) == list(unbroken.series("train/loss").values[: len(before)])
    whole = record(SETTING, tmp_path, certify=False)
    assert _measured(whole) == _measured(unbroken)


@pytest.fixture(scope="module")
def normalized(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return an unbroken run with BatchNorm, made by this process."""
    return record(NORMALIZED, tmp_path_factory.mktemp("normalized"), certify=False)


@pytest.mark.turns(10)
@pytest.mark.parametrize("losses", [0, 1, 3, 7])
def test_stopped_at_any_step_it_records_what_an_unbroken_run_does(
    normalized: Run, tmp_path: Path, losses: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also in the first epoch, of which nothing can be resumed; every metric to the last bit, clocks apart."""

    def stop(text: str) -> None:
        if f"step {losses} of" in text:
            raise KeyboardInterrupt

    def never(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        if losses == 0:  # between the first measurement and the first update
            patch.setattr("normscope.papers.than2025.figures.record.train", never)
        with pytest.raises(KeyboardInterrupt):
            record(NORMALIZED, tmp_path, certify=False, progress=stop)
    assert len(Run.open(tmp_path).points) > losses
    whole = record(NORMALIZED, tmp_path, certify=False)
    kinds = {name.split("/")[0] for name in whole.names}
    assert {"norm", "folded", "variance", "constant", "printed", "product", "probe", "train"} <= kinds
    assert _measured(whole) == _measured(normalized)


def test_a_folder_of_something_else_stays_as_it_is(tmp_path: Path) -> None:
    """A run that no figure made is not begun anew."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"config\.json"):
        record(SETTING, tmp_path, certify=False)
    assert [file.name for file in tmp_path.iterdir()] == ["config.json"]


def test_a_finished_run_is_read_not_trained(unbroken: Run) -> None:
    """Nothing is written again."""
    file = unbroken.path / "metrics.jsonl"
    before = file.stat().st_mtime_ns
    assert record(SETTING, unbroken.path, certify=False).last_step == 20
    assert file.stat().st_mtime_ns == before


def test_another_setting_needs_another_folder(unbroken: Run) -> None:
    """Its own is not overwritten."""
    with pytest.raises(InputError, match="seed"):
        record(replace(SETTING, seed=1), unbroken.path, certify=False)


def test_training_data_lie_in_the_unit_ball() -> None:
    """The largest on its edge."""
    images, labels = training_data(SETTING, None)
    norms = images.flatten(1).norm(dim=1)
    assert float(norms.max()) == pytest.approx(1.0, abs=1e-6)
    assert len(images) == len(labels) == 640


def test_one_factor_for_all() -> None:
    """Quotients of norms stay, the largest becomes one; zeros stay zeros."""
    x = torch.rand(5, 2, 3, generator=torch.Generator().manual_seed(0))
    scaled = into_unit_ball(x)
    factor = x.flatten(1).norm(dim=1).max()
    assert torch.allclose(scaled * factor, x)
    assert torch.equal(into_unit_ball(torch.zeros(2, 3)), torch.zeros(2, 3))


def test_enlarging_repeats_pixels_and_channels() -> None:
    """Nothing is invented between pixels."""
    x = torch.arange(4.0).view(1, 1, 2, 2)
    y = enlarged(x, 4)
    assert y.shape == (1, 3, 4, 4)
    assert torch.equal(y[0, 0], x[0, 0].repeat_interleave(2, 0).repeat_interleave(2, 1))
    assert enlarged(torch.zeros(1, 3, 2, 2), 4).shape == (1, 3, 4, 4)
