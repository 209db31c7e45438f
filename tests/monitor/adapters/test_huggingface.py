"""The callback of the Hugging Face trainer, with the trainer itself."""

from __future__ import annotations

import math
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from normscope.doctor import UnhealthyError
from normscope.graph.guard import same_bits
from normscope.monitor import HuggingFaceDoctor, HuggingFaceMonitor, Run
from normscope.zoo.randomness import seeded

transformers = pytest.importorskip("transformers")
pytest.importorskip("accelerate")


def model() -> Any:
    config = transformers.BertConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16,
        max_position_embeddings=12, num_labels=3,
    )  # fmt: skip
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return transformers.BertForSequenceClassification(config)


def data(count: int = 24) -> list[dict[str, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, 20, (count, 6), generator=generator)
    labels = torch.randint(0, 3, (count,), generator=generator)
    return [{"input_ids": t, "labels": y} for t, y in zip(tokens, labels, strict=True)]


def probe(size: int = 6) -> dict[str, Tensor]:
    rows = data()[:size]
    return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}


def train(net: Any, path: Path, callbacks: list[Any], resume: str | None = None, **settings: Any) -> None:
    arguments = transformers.TrainingArguments(
        output_dir=str(path / "trainer"), max_steps=6, per_device_train_batch_size=4, learning_rate=1e-3, seed=3,
        report_to=[], logging_steps=2, use_cpu=True, disable_tqdm=True, **{"save_strategy": "no", **settings},
    )  # fmt: skip
    with warnings.catch_warnings(), seeded(0):  # the trainer seeds every generator itself
        warnings.simplefilter("ignore")
        transformers.Trainer(net, arguments, train_dataset=data(), callbacks=callbacks).train(resume)


def callback(path: Path, **settings: Any) -> HuggingFaceMonitor:
    return HuggingFaceMonitor(probe(), run=path / "run", every=2, budget=math.inf, **settings)


@pytest.mark.turns(6)
def test_a_training_is_monitored_and_the_same_without(tmp_path: Path) -> None:
    without, beside = model(), model()
    train(without, tmp_path, [])
    train(beside, tmp_path, [callback(tmp_path, preset="standard")])
    for (name, a), (_, b) in zip(without.state_dict().items(), beside.state_dict().items(), strict=True):
        assert same_bits(a, b), name
    run = Run.open(tmp_path / "run")
    assert run.series("norm/classifier").steps.tolist() == [0, 2, 4, 6]
    assert run.series("train/loss").steps.tolist() == [2, 4, 6]
    assert any(n["kind"] == "layer_norm" for n in run.config["normalizers"])
    assert "gradient/ratio/classifier" in run.names
    assert "margin/median" in run.names


def test_the_loss_on_the_probe_is_the_models_own(tmp_path: Path) -> None:
    net = model().eval()
    truth = float(net(**probe()).loss.detach())
    train(net, tmp_path, [callback(tmp_path)])
    found = Run.open(tmp_path / "run").series("probe/loss")
    assert found.values[0] == pytest.approx(truth, rel=1e-5)
    assert found.values[-1] != found.values[0]


def test_accumulated_batches_are_one_update(tmp_path: Path) -> None:
    train(model(), tmp_path, [callback(tmp_path)], gradient_accumulation_steps=2)
    assert Run.open(tmp_path / "run").series("norm/classifier").steps.tolist() == [0, 2, 4, 6]


class Stop(transformers.TrainerCallback):  # type: ignore[misc]
    """Fails in the middle of training."""

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Fail before the sixth update."""
        if state.global_step == 5:
            raise RuntimeError("stop here")


@pytest.mark.turns(5)
def test_a_training_that_failed_is_resumed_from_its_checkpoint(tmp_path: Path) -> None:
    """The run goes on in the same process, though the trainer told the callback of no end, and has each point once."""
    saving = {"save_strategy": "steps", "save_steps": 3}
    mon = callback(tmp_path)
    with pytest.raises(RuntimeError, match="stop here"):
        train(model(), tmp_path, [mon, Stop()], **saving)
    assert Run.open(tmp_path / "run").last_step == 4
    checkpoint = str(tmp_path / "trainer" / "checkpoint-3")
    train(model(), tmp_path, [mon], resume=checkpoint, **saving)
    run = Run.open(tmp_path / "run")
    assert run.series("norm/classifier").steps.tolist() == [0, 2, 4, 6]  # as without the break
    assert run.series("train/loss").steps.tolist() == [2, 4, 6]
    assert [part["step"] for part in run.config["resumed"]] == [3]
    assert run.config["ended"] == {"step": 6}
    unbroken = model()
    train(unbroken, tmp_path / "other", [])
    assert all(same_bits(a, b) for a, b in zip(unbroken.parameters(), mon.monitor.model.parameters(), strict=True))


def test_an_evaluation_after_training_is_kept(tmp_path: Path) -> None:
    mon = callback(tmp_path)
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "trainer"), max_steps=2, report_to=[], use_cpu=True, disable_tqdm=True,
        save_strategy="no",
    )  # fmt: skip
    with warnings.catch_warnings(), seeded(0):
        warnings.simplefilter("ignore")
        trainer = transformers.Trainer(model(), arguments, train_dataset=data(), callbacks=[mon])
        trainer.train()
        found = trainer.evaluate(data()[:8])
    run = Run.open(tmp_path / "run")
    assert run.series("train/eval_loss").values.tolist() == [found["eval_loss"]]
    assert run.config["ended"] == {"step": 2}


def test_a_training_that_cannot_go_well_is_stopped_before_its_first_step(tmp_path: Path) -> None:
    """A healthy one goes on; weights that are no numbers are an error."""
    doctor = HuggingFaceDoctor({"input_ids": probe()["input_ids"]})
    train(model(), tmp_path, [doctor])
    assert doctor.result is not None
    assert not doctor.result.failed
    broken = model()
    with torch.no_grad():
        broken.classifier.bias[0] = math.nan
    with pytest.raises(UnhealthyError, match="NS002"):
        train(broken, tmp_path, [HuggingFaceDoctor()])
