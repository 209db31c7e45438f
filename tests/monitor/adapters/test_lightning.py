"""The Lightning callback, with Lightning itself."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from normscope.core.errors import InputError
from normscope.doctor import UnhealthyError
from normscope.graph.guard import same_bits
from normscope.monitor import LightningDoctor, LightningMonitor, Run
from normscope.zoo.randomness import seeded

lightning = pytest.importorskip("lightning.pytorch")


def data() -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    return torch.randn(48, 5, generator=generator), torch.randint(0, 2, (48,), generator=generator)


class Classifier(lightning.LightningModule):  # type: ignore[misc]
    """BatchNorm and dropout."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(1)
            self.net = nn.Sequential(
                nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2)
            )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        """Return logits."""
        return self.net(x)

    def training_step(self, batch: Any, index: int) -> Tensor:
        """Return the loss."""
        return F.cross_entropy(self(batch[0]), batch[1])

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Adam."""
        return torch.optim.Adam(self.parameters(), lr=1e-2)


def fit(model: Classifier, path: Path, callbacks: list[Any], epochs: int = 2, **settings: Any) -> Any:
    loader = DataLoader(TensorDataset(*data()), batch_size=8)
    with warnings.catch_warnings(), seeded(2):
        warnings.simplefilter("ignore")  # Lightning advises on workers and the like
        trainer = lightning.Trainer(
            max_epochs=epochs, accelerator="cpu", devices=1, default_root_dir=path, callbacks=callbacks,
            enable_progress_bar=False, enable_model_summary=False, log_every_n_steps=1,
            **{"logger": False, "enable_checkpointing": False, **settings},
        )  # fmt: skip
        trainer.fit(model, loader)
    return trainer


def callback(**settings: Any) -> LightningMonitor:
    x, y = data()
    return LightningMonitor((x[:16], y[:16]), **{"every": 2, "budget": math.inf, **settings})


def test_a_fit_is_monitored_and_the_same_without(tmp_path: Path) -> None:
    without, beside = Classifier(), Classifier()
    fit(without, tmp_path, [])
    fit(beside, tmp_path, [callback(preset="standard", run=tmp_path / "run")])
    for (name, a), (_, b) in zip(without.state_dict().items(), beside.state_dict().items(), strict=True):
        assert same_bits(a, b), name
    run = Run.open(tmp_path / "run")
    assert run.series("train/loss").steps.tolist() == list(range(1, 13))
    assert run.series("norm/net.0").steps.tolist() == [0, 2, 4, 6, 8, 10, 12]
    assert {"gradient/ratio/net.0", "effective_rate/net.4", "angle/net.0"} <= set(run.names)


def test_accumulated_batches_are_one_update(tmp_path: Path) -> None:
    mon = callback(run=tmp_path / "run")
    fit(Classifier(), tmp_path, [mon], accumulate_grad_batches=3)
    assert Run.open(tmp_path / "run").series("train/loss").steps.tolist() == [1, 2, 3, 4]


def test_a_part_of_the_module_and_the_trainers_loggers(tmp_path: Path) -> None:
    from lightning.pytorch.loggers import CSVLogger

    logger = CSVLogger(tmp_path, name="csv")
    fit(Classifier(), tmp_path, [callback(module="net")], logger=logger)
    assert "norm/0" in Path(logger.experiment.metrics_file_path).read_text()
    with pytest.raises(InputError, match="in the Lightning module"):
        fit(Classifier(), tmp_path, [callback(module="body")])


def test_a_fit_that_fails_closes_the_run(tmp_path: Path) -> None:
    class Failing(Classifier):
        """Stops in the middle."""

        def training_step(self, batch: Any, index: int) -> Tensor:
            """Fail at the fourth batch."""
            if index == 3:
                raise RuntimeError("stop here")
            return super().training_step(batch, index)

    mon = callback(run=tmp_path / "run", every=100)
    with pytest.raises(RuntimeError, match="stop here"):
        fit(Failing(), tmp_path, [mon])
    run = Run.open(tmp_path / "run")
    assert run.last_step == 3
    assert run.series("norm/net.0").steps.tolist() == [0]  # no last probe while an error is on its way
    assert run.config["ended"] == {"step": 3}


def test_a_resumed_fit_continues_its_run(tmp_path: Path) -> None:
    model = Classifier()
    trainer = fit(model, tmp_path, [callback(run=tmp_path / "run")], epochs=1)
    trainer.save_checkpoint(tmp_path / "one.ckpt")
    loader = DataLoader(TensorDataset(*data()), batch_size=8)
    with warnings.catch_warnings(), seeded(2):
        warnings.simplefilter("ignore")
        again = lightning.Trainer(
            max_epochs=2, accelerator="cpu", devices=1, logger=False, enable_checkpointing=False,
            enable_progress_bar=False, enable_model_summary=False, default_root_dir=tmp_path,
            callbacks=[callback(run=tmp_path / "run")],
        )  # fmt: skip
        again.fit(Classifier(), loader, ckpt_path=tmp_path / "one.ckpt", weights_only=False)
    run = Run.open(tmp_path / "run")
    assert run.series("train/loss").steps.tolist() == list(range(1, 13))
    assert run.config["resumed"][0]["step"] == 6


def test_all_optimizers_tell_their_rates(tmp_path: Path) -> None:
    class Two(Classifier):
        """Steps two optimizers itself."""

        def __init__(self) -> None:
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch: Any, index: int) -> Tensor:
            """Step both."""
            loss = super().training_step(batch, index)
            for optimizer in self.optimizers():
                optimizer.zero_grad()
            self.manual_backward(loss)
            for optimizer in self.optimizers():
                optimizer.step()
            return loss

        def configure_optimizers(self) -> Any:
            """Return one for the first layer, and one for the rest."""
            rest = [p for layer in list(self.net)[1:] for p in layer.parameters()]
            return [torch.optim.SGD(self.net[0].parameters(), lr=0.5), torch.optim.SGD(rest, lr=0.25)], []

    mon, model = callback(run=tmp_path / "run", quantities=["effective_rate"]), Two()
    fit(model, tmp_path, [mon])
    for layer, rate in ((0, 0.5), (4, 0.25)):
        square = float(model.net[layer].weight.detach().double().square().sum())
        assert mon.monitor.latest[f"effective_rate/net.{layer}"] == pytest.approx(rate / square, rel=1e-5)


def test_a_fit_that_cannot_go_well_is_stopped_before_its_first_step(tmp_path: Path) -> None:
    """A healthy one goes on, with what was found to read; a scale of zero that everything passes is an error."""
    doctor = LightningDoctor(data()[0])
    fit(Classifier(), tmp_path, [doctor], epochs=1)
    assert doctor.result is not None
    assert not doctor.result.failed
    closed = Classifier()
    nn.init.zeros_(closed.net[1].weight)
    with pytest.raises(UnhealthyError, match="NS603"):
        fit(closed, tmp_path, [LightningDoctor(data()[0])])
    assert int(closed.net[1].num_batches_tracked) == 0
