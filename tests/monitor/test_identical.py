"""Training with and without the monitor is the same, bit for bit, however it is trained."""

from __future__ import annotations

import math
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fingerprints import fingerprint
from normscope.core.errors import CaptureError
from normscope.graph.guard import same_bits
from normscope.monitor import probing
from normscope.monitor.monitor import Monitor
from normscope.monitor.quantities import QUANTITIES
from normscope.zoo.networks.mlp import relu10

Loop = Callable[[nn.Module, Monitor | None], list[float]]
STEPS = 12


class Net(nn.Module):
    """The papers' network with BatchNorm, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.body = relu10("bn", width=8, in_features=6, classes=8)
        self.drop = nn.Dropout(0.3)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.head(self.drop(F.relu(self.body(x))))


def net() -> nn.Module:
    """Return the network with the same weights each time, ready for training."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return Net().train()


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return torch.randn(96, 6, generator=generator), torch.randint(0, 3, (96,), generator=generator)


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    x, y = data()
    for i in range(STEPS):
        rows = torch.arange(i * 16, i * 16 + 16) % len(x)
        yield x[rows], y[rows]


def plain(model: nn.Module, mon: Monitor | None) -> list[float]:
    """Adam, one batch a step."""
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    return _train(model, optimizer, mon, accumulate=1, autocast=False)


def accumulated(model: nn.Module, mon: Monitor | None) -> list[float]:
    """Momentum, three batches a step."""
    optimizer = torch.optim.SGD(model.parameters(), 1e-1, momentum=0.9)
    return _train(model, optimizer, mon, accumulate=3, autocast=False)


def mixed(model: nn.Module, mon: Monitor | None) -> list[float]:
    """bfloat16 autocast, the monitor called inside of it."""
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    return _train(model, optimizer, mon, accumulate=1, autocast=True)


def scaled(model: nn.Module, mon: Monitor | None) -> list[float]:
    """Mixed precision with a scaled loss, as for float16."""
    optimizer, scaler = torch.optim.Adam(model.parameters(), 1e-2), torch.amp.GradScaler("cpu")
    losses = []
    for x, y in batches():
        with torch.autocast("cpu", torch.float16):
            loss = F.cross_entropy(model(x).float(), y)
        optimizer.zero_grad()
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
        losses.append(float(loss.detach()))
        if mon is not None:
            mon.step(loss=loss)
    return losses


def _train(
    model: nn.Module, optimizer: torch.optim.Optimizer, mon: Monitor | None, *, accumulate: int, autocast: bool
) -> list[float]:
    losses = []
    if mon is not None:
        mon.optimizer = optimizer
    for i, (x, y) in enumerate(batches()):
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            loss = F.cross_entropy(model(x).float(), y)
            loss.backward()
            losses.append(float(loss.detach()))
            if (i + 1) % accumulate == 0:
                optimizer.step()
                if mon is not None:
                    mon.step(loss=loss)  # before zero_grad: the gradients are still there, and stay
                optimizer.zero_grad()
    return losses


def run(loop: Loop, *, monitored: bool, model: nn.Module | None = None) -> tuple[nn.Module, list[float]]:
    """Train from the same start, with the same random numbers for dropout."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        model = net() if model is None else model
        if not monitored:
            return model, loop(model, None)
        settings = {"every": 2, "budget": math.inf, "quantities": QUANTITIES}
        with Monitor(model, (data()[0][:20], data()[1][:20]), **settings) as mon:
            losses = loop(model, mon)
            assert mon.probes > 2
            assert any(name.startswith("angle/") for name in mon.latest)
        return model, losses


@pytest.mark.turns(3)
@pytest.mark.parametrize("loop", [plain, accumulated, mixed, scaled])
def test_weights_and_losses_are_the_same(loop: Loop) -> None:
    one, first = run(loop, monitored=False)
    two, second = run(loop, monitored=True)
    assert first == second
    _same(one, two)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
def test_a_compiled_model_is_trained_alike(backend: str) -> None:
    """Compiled once and trained twice from the same start; the default backend writes C++, which takes long."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    start = {name: value.clone() for name, value in model.state_dict().items()}
    compiled = torch.compile(model, backend=backend)
    results = []
    for monitored in (False, True):
        model.load_state_dict(start)
        losses = run(plain, monitored=monitored, model=compiled)[1]
        results.append((losses, [value.clone() for value in model.state_dict().values()]))
    assert results[0][0] == results[1][0]
    assert all(same_bits(a, b) for a, b in zip(results[0][1], results[1][1], strict=True))


def spectral() -> nn.Module:
    """Return the network with its head spectrally normalized: reading that weight in training mode changes buffers."""
    model = net()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(6)
        nn.utils.parametrizations.spectral_norm(model.head)
    return model


@pytest.mark.turns(3)
def test_spectral_normalization_is_trained_alike() -> None:
    one, first = run(plain, monitored=False, model=spectral())
    two, second = run(plain, monitored=True, model=spectral())
    assert first == second
    _same(one, two)


@pytest.mark.turns(2)
@pytest.mark.parametrize("build", [net, spectral])
def test_modules_are_looked_at_without_a_trace(build: Callable[[], nn.Module], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*given: object) -> None:
        raise CaptureError("no graph today")

    one, first = run(plain, monitored=False, model=build())
    monkeypatch.setattr(probing, "GraphView", refuse)
    two, second = run(plain, monitored=True, model=build())
    assert first == second
    _same(one, two)


@pytest.mark.turns(5)
def test_a_probe_leaves_everything_as_it_is() -> None:
    model = net()
    x, y = data()
    F.cross_entropy(model(x), y).backward()
    mon = Monitor(model, (x, y), preset="full").begin()
    before = fingerprint(model, x, y)
    mon.probe()
    mon.certify()
    assert fingerprint(model, x, y) == before
    mon.close()


def _same(one: nn.Module, two: nn.Module) -> None:
    for (name, a), (_, b) in zip(one.state_dict().items(), two.state_dict().items(), strict=True):
        assert same_bits(a, b), name


WORKER = """
import sys
import torch
from torch import nn
from torch.nn import functional as F
import test_identical as here
from normscope.monitor.monitor import Monitor

def train(rank, monitored):
    torch.manual_seed(11)
    model = here.net()
    parallel = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.Adam(parallel.parameters(), 1e-2)
    x, y = here.data()
    mon = None
    if monitored:
        settings = dict(preset="standard", every=2, budget=float("inf"), optimizer=optimizer)
        mon = Monitor(parallel, (x[:20], y[:20]), **settings).begin()
    for i in range(6):
        rows = torch.arange(i * 16 + rank * 8, i * 16 + rank * 8 + 8) % len(x)
        loss = F.cross_entropy(parallel(x[rows]), y[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if mon is not None:
            mon.step(loss=loss)
    if mon is not None:
        assert (mon.probes > 2) == (rank == 0), mon.probes
        mon.close()
    return model.state_dict()

torch.set_num_threads(1)
rank, address, out = int(sys.argv[1]), sys.argv[2], sys.argv[3]
torch.distributed.init_process_group("gloo", init_method=address, rank=rank, world_size=2)
torch.save([train(rank, False), train(rank, True)], f"{out}-{rank}.pt")
torch.distributed.destroy_process_group()
"""


@pytest.mark.turns(2)
def test_two_processes_train_alike(tmp_path: Path) -> None:
    """DistributedDataParallel over gloo: only the first process measures, and none of them waits for a probe."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"tcp://127.0.0.1:{free.getsockname()[1]}"
    paths = [str(Path(__file__).parent), str(Path(__file__).parents[1])]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            [sys.executable, "-c", WORKER, str(rank), address, str(tmp_path / "rank")],
            env=environment,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for process in running:
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors
    states = [torch.load(tmp_path / f"rank-{rank}.pt") for rank in range(2)]
    for without, beside in states:
        assert without.keys() == beside.keys()
        assert all(same_bits(without[name], beside[name]) for name in without)
    shared = [name for name in states[0][0] if "running" not in name]
    assert all(same_bits(states[0][0][name], states[1][0][name]) for name in shared)  # they did train together
