"""The largest eigenvalue along a run."""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from curved import classifier, labelled, plain_hessian
from fingerprints import fingerprint
from normscope.graph.guard import same_bits
from normscope.monitor import monitor as monitor_module
from normscope.monitor import probing
from normscope.monitor.budget import Budget
from normscope.monitor.module_view import ModuleView
from normscope.monitor.monitor import Monitor
from normscope.monitor.quantities import curvature
from normscope.monitor.quantities.curvature import AT_ONCE, MOST, TOLERANCE, LargestCurvature, hessian

Points = dict[int, dict[str, float]]


class Sink:
    """Keeps every point, and refuses steps out of order, as trackers do."""

    def __init__(self) -> None:
        self.points: Points = {}

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """Keep a point."""
        assert step >= max(self.points, default=0)
        self.points.setdefault(step, {}).update(metrics)


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """Return the number of products made so far, in a list of one."""
    count = [0]

    def counting(*args: Any) -> Any:
        found = hessian(*args)
        if found is None:
            return None

        def apply(vector: Tensor) -> Tensor:
            count[0] += 1
            return found[0](vector)

        return apply, found[1]

    monkeypatch.setattr(curvature, "hessian", counting)
    return count


def _largest(model: nn.Module, x: Tensor, y: Tensor, *, train: bool = True) -> float:
    return float(torch.linalg.eigvalsh(plain_hessian(model, x, y, train=train, at_once=True))[-1])


def _trained(model: nn.Module, rate: float = 0.1) -> Iterator[None]:
    """Train on one batch, an update at a time."""
    x, y = labelled()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    while True:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
        yield


def _watched(model: nn.Module, **settings: Any) -> tuple[Monitor, Sink]:
    sink = Sink()
    rest = {"quantities": ("curvature",), "every": 1, "budget": math.inf, "mode": "batch", "sinks": [sink]}
    return Monitor(model, labelled(), **rest | settings), sink


@pytest.mark.turns(3)
def test_readings_are_within_one_percent_at_their_own_step(counted: list[int]) -> None:
    """Four products an update; the numbers belong to the weights of the update that the reading began with."""
    model, (x, y) = classifier().train(), labelled()
    monitor, sink = _watched(model, optimizer=torch.optim.SGD(model.parameters(), lr=0.1))
    states, spread = {}, 0
    with monitor:
        for step, _ in zip(range(1, 121), _trained(model), strict=False):
            states[step] = {name: tensor.clone() for name, tensor in model.state_dict().items()}
            before, products = fingerprint(model), counted[0]
            monitor.step(loss=1.0)
            assert counted[0] - products <= AT_ONCE == 4
            assert fingerprint(model) == before
            spread += monitor._is_unfinished()
    readings = {step: p for step, p in sink.points.items() if "curvature/largest" in p and step in states}
    assert len(readings) > 40
    assert spread > 5
    as_it_was = classifier().train()
    for step, found in readings.items():
        as_it_was.load_state_dict(states[step])
        value, residual, truth = found["curvature/largest"], found["curvature/residual"], _largest(as_it_was, x, y)
        assert value <= truth * (1 + 1e-4)
        assert found["curvature/converged"] == 1.0
        assert value >= 0.99 * truth
        assert residual <= TOLERANCE * value * (1 + 1e-9)
        assert found["curvature/estimate"] >= value * (1 - 1e-6)
        assert found["curvature/over_threshold"] == pytest.approx(0.05 * value)
    assert all(sink.points[step]["train/loss"] == 1.0 for step in states)


@pytest.mark.turns(3)
@pytest.mark.parametrize("mode", ["batch", "running"])
@pytest.mark.parametrize("modules", [False, True])
def test_a_reading_over_many_updates_is_that_of_its_first(
    mode: str, modules: bool, counted: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights and running statistics move far while it is open; the value is that of neither later moment."""
    monkeypatch.setattr(curvature, "TOLERANCE", 1e-6)
    if modules:
        monkeypatch.setattr(probing, "GraphView", _refused)
    model, (x, y) = classifier().train(), labelled()
    monitor, sink = _watched(model, mode=mode)
    updates, train = _trained(model, 0.3), mode == "batch"
    with monitor:
        assert isinstance(monitor._view, ModuleView) == modules
        step = 3
        for _ in range(step):
            next(updates)
        truth = _largest(model, x, y, train=train)
        monitor.step(step)
        later = []
        while monitor._is_unfinished():
            assert step not in sink.points
            next(updates)
            later.append(_largest(model, x, y, train=train))
            products = counted[0]
            monitor.step(loss=0.5)
            assert counted[0] - products <= AT_ONCE
    assert len(later) >= 2
    value = sink.points[step]["curvature/largest"]
    assert value == pytest.approx(truth, rel=1e-4)
    assert min(abs(value - other) for other in later) > 0.01 * truth
    assert [sink.points[step + i]["train/loss"] for i in range(1, len(later) + 1)] == [0.5] * len(later)


def _refused(*_: Any) -> ModuleView:
    raise RuntimeError("no graph")


def test_training_is_the_same_bit_for_bit_beside_readings_that_never_converge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "TOLERANCE", 0.0)
    models = []
    for watched in (False, True):
        model = classifier().train()
        monitor, sink = _watched(model)
        for step, _ in enumerate(itertools.islice(_trained(model), 30)):
            if watched:
                monitor.step()
                assert monitor._is_unfinished() == (step % 6 != 5)
        monitor.close()
        models.append(model)
        readings = [p for p in sink.points.values() if "curvature/converged" in p]
        assert not any(p["curvature/converged"] for p in readings)
        assert len(readings) == (7 if watched else 0)  # with those of the start and the end
    assert all(same_bits(a, b) for a, b in zip(*(m.state_dict().values() for m in models), strict=True))


def test_the_last_number_stays_until_the_next_reading_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "TOLERANCE", 1e-6)
    model = classifier().train()
    monitor, sink = _watched(model)
    with monitor:
        before = monitor.latest["curvature/largest"]
        updates = _trained(model)
        next(updates)
        monitor.step()
        assert monitor._is_unfinished()
        assert monitor.latest["curvature/largest"] == before
        while monitor._is_unfinished():
            next(updates)
            monitor.step()
        assert monitor.latest["curvature/largest"] == sink.points[1]["curvature/largest"] != before


def test_the_end_finishes_a_reading_and_an_error_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "TOLERANCE", 1e-6)
    for error in (False, True):
        model, (x, y) = classifier().train(), labelled()
        monitor, sink = _watched(model, quantities=("loss", "curvature"))
        monitor.begin()
        next(_trained(model))
        truth = _largest(model, x, y)
        monitor.step(loss=2.0)
        assert monitor._is_unfinished()
        monitor.close(measure=not error)
        assert {"probe/loss", "train/loss", "clock/share"} <= set(sink.points[1])
        assert ("curvature/largest" in sink.points[1]) != error
        assert error or sink.points[1]["curvature/largest"] == pytest.approx(truth, rel=1e-4)


def test_a_probe_by_hand_and_other_numbers_keep_the_order(monkeypatch: pytest.MonkeyPatch, counted: list[int]) -> None:
    """``probe`` finishes the open reading and makes its own at once; what is certified meanwhile waits too."""
    monkeypatch.setattr(curvature, "TOLERANCE", 1e-6)
    model, (x, y) = classifier().train(), labelled()
    monitor, sink = _watched(model)
    updates = _trained(model)
    with monitor:
        next(updates)
        monitor.step()
        next(updates)
        monitor.step()
        assert monitor._is_unfinished()
        monitor.certify()
        monitor.log(accuracy=0.5)
        assert max(sink.points) == 0
        before = counted[0]
        found = monitor.probe()
        assert counted[0] - before <= 2 * MOST
        assert not monitor._is_unfinished()
        assert found["curvature/largest"] == pytest.approx(_largest(model, x, y), rel=1e-4)
        assert set(sink.points) == {0, 1, 2}
        assert {"curvature/largest", "train/accuracy", "certified/global_log10"} <= set(sink.points[2])
        assert sink.points[1]["curvature/largest"] != found["curvature/largest"]


@pytest.mark.turns(3)
def test_a_model_that_changes_ends_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "TOLERANCE", 1e-6)
    changes: list[Callable[[nn.Sequential], Any]] = [
        lambda m: m[0].weight.requires_grad_(False),
        lambda m: m.append(nn.Linear(3, 3)),
        lambda m: m.__setitem__(6, nn.Linear(6, 3, bias=False)),
    ]
    for change in changes:
        model = classifier().train()
        monitor, sink = _watched(model, every=3)
        with monitor, warnings.catch_warnings():
            warnings.simplefilter("error")
            for _ in itertools.islice(_trained(model), 3):
                monitor.step()
            assert monitor._is_unfinished()
            change(model)
            monitor.step()
            assert not monitor._is_unfinished()
            assert "curvature/largest" not in sink.points[3]
            found = monitor.probe()
        assert found["curvature/largest"] == pytest.approx(
            float(torch.linalg.eigvalsh(_trained_part(model, plain_hessian(model, *labelled(), train=True)))[-1]), 1e-3
        )


def _trained_part(model: nn.Module, matrix: Tensor) -> Tensor:
    """Return the part of a matrix that belongs to trained parameters."""
    wanted = torch.cat([torch.full((p.numel(),), p.requires_grad) for p in model.parameters()])
    return matrix[wanted][:, wanted]


def test_weights_that_are_not_finite_end_the_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(curvature, "TOLERANCE", 1e-4)
    model = classifier().train()
    monitor, sink = _watched(model)
    with monitor:
        next(_trained(model))
        truth = _largest(model, *labelled())
        monitor.step()
        with torch.no_grad():
            model[0].weight.fill_(math.nan)
        while monitor._is_unfinished():  # of the weights before
            monitor.step()
        assert sink.points[1]["curvature/largest"] == pytest.approx(truth, rel=1e-3)
        monitor.step()
        assert "curvature/largest" not in sink.points[monitor._step]
        assert not monitor._is_unfinished()


@pytest.mark.turns(3)
def test_all_products_count_and_readings_become_rare_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that only products and training move: what is spent stays within the share, readings included."""
    now = [0.0]
    monkeypatch.setattr(monitor_module.time, "perf_counter", lambda: now[0])

    def dear(*args: Any) -> Any:
        found = hessian(*args)
        assert found is not None

        def apply(vector: Tensor) -> Tensor:
            now[0] += 1.0
            return found[0](vector)

        return apply, found[1]

    monkeypatch.setattr(curvature, "hessian", dear)
    monkeypatch.setattr(curvature, "TOLERANCE", 1e-4)
    model = classifier().train()
    sink = Sink()
    monitor = Monitor(model, labelled(), quantities=("curvature",), every=1, mode="batch", sinks=[sink])
    monitor.budget = Budget(0.05, lambda: now[0])
    with monitor:
        shares, before = [], 0.0
        for _ in itertools.islice(_trained(model), 1500):
            now[0] += 1.0
            monitor.step()
            assert monitor.budget.spent - before <= AT_ONCE
            before = monitor.budget.spent
            if monitor._is_unfinished():
                assert monitor.budget.expected >= 4
            shares.append(monitor.budget.used())
    readings = [p for p in sink.points.values() if "clock/share" in p]
    assert max(shares) <= 0.05
    assert len(readings) > 4
    assert max(p["clock/probe_seconds"] for p in readings) > AT_ONCE  # of all updates together
    assert sum(p["clock/probe_seconds"] for p in readings) == pytest.approx(monitor.budget.spent)


def test_a_reading_that_had_too_few_products_is_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    model = classifier().train()
    monkeypatch.setattr(curvature, "MOST", 1)
    monitor, _ = _watched(model, every=1000)
    with monitor:
        monitor.probe()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(parameter.flip(0))
        found = monitor.probe()
    assert found["curvature/converged"] == 0.0
    assert found["curvature/residual"] > TOLERANCE * found["curvature/largest"]


def test_a_loss_without_curvature_has_no_reading() -> None:
    w = torch.tensor([1.0, 2.0], requires_grad=True)
    flat = torch.autograd.grad((3 * w).sum(), w, create_graph=True)[0]
    assert hessian({"w": flat}, {"w": w}) is None
    assert LargestCurvature().proceed() == {}
