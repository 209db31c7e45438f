"""Train a network of a figure and record what the figure shows; a stopped run can be resumed."""

import json
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.core.errors import InputError
from normscope.core.files import write_text
from normscope.core.result import Result
from normscope.monitor.monitor import Monitor
from normscope.monitor.run import CONFIG, METRICS, Run
from normscope.monitor.sinks.folder import RunFolder
from normscope.papers.study import labelled_data
from normscope.papers.than2025.figures.training_setting import TrainingSetting
from normscope.zoo import catalogue as zoo
from normscope.zoo.train import he_normal_, train
from normscope.zoo.training_state import steps_done

STATE, SETTING = "state.pt", "setting.json"
#: What the figures and their table need.
QUANTITIES = ("loss", "margins", "variance", "norms", "folded", "inverse_sigma")
#: Training examples on which everything is measured.
PROBE = 512
#: Target width of each norm in a certified analysis; the axes of the figures count decades.
TOLERANCE = 1e-2


def record(
    setting: TrainingSetting,
    folder: Path,
    *,
    root: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
    certify: bool = True,
) -> Run:
    """Train and measure a network as its setting says and return the run; an existing run is resumed or reused.

    A run continues from its last complete epoch, or starts again if there is none. Each measurement depends only on the
    current weights, so a run that was stopped records the same as an uninterrupted one, except for its clocks.

    The state, the points and the results of a run go to its folder. With ``certify`` the network is bounded at the
    start and at the end, in ``start.json`` and ``end.json``. A folder with a run of another setting is refused.
    """
    say = progress or (lambda text: None)
    certify = certify and setting.certified
    _refuse_another(setting, folder)
    if is_finished(setting, folder, certify=certify):
        return Run.open(folder)
    images, labels = training_data(setting, root)
    model = zoo.build(setting.network, seed=setting.seed, **setting.arguments)
    he_normal_(model, torch.Generator().manual_seed(setting.seed))
    write_text(folder / SETTING, json.dumps(setting.to_dict(), indent=1) + "\n")
    steps = setting.epochs * max(1, len(images) // setting.batch)
    at = {max(1, round(k * steps / setting.probes)) for k in range(1, setting.probes + 1)}
    probe = (images[:PROBE], labels[:PROBE])
    if certify and not (folder / "start.json").exists():
        say(f"{setting.name}, bounding it at the start")
        _certified(model, probe[0], setting.name).save(folder / "start.json")
    points = RunFolder(folder)
    done = steps_done(folder / STATE)
    if not done:
        for file in (METRICS, CONFIG):  # left by a training of this setting that saved no state
            (folder / file).unlink(missing_ok=True)
    with Monitor(
        model, probe, quantities=QUANTITIES, sinks=[points], budget=1.0, every=steps + 1, step=done, remember=False,
        name=setting.name,
    ) as monitor:  # fmt: skip

        def after_step(step: int, loss: float) -> None:
            points.log({"train/loss": loss}, step=step)
            if step in at:
                monitor.step(step)
                monitor.probe()
            say(f"{setting.name}, training: step {step} of {steps}, loss {loss:.4g}")

        train(model, images, labels, epochs=setting.epochs, seed=setting.seed, after_step=after_step,
              state=folder / STATE, lr=setting.lr, batch=setting.batch, weight_decay=setting.weight_decay)  # fmt: skip
    if certify:
        say(f"{setting.name}, bounding it at the end")
        _certified(model, probe[0], setting.name).save(folder / "end.json")
    return Run.open(folder)


def training_data(setting: TrainingSetting, root: str | Path | None) -> tuple[Tensor, Tensor]:
    """Return the training images in the unit ball, and their labels."""
    images, labels = labelled_data(setting.data, root, "train", setting.examples)
    return into_unit_ball(images if setting.side is None else enlarged(images, setting.side)), labels


def is_finished(setting: TrainingSetting, folder: Path, *, certify: bool) -> bool:
    """Return whether all epochs are trained and, if required, both analyses are done."""
    whole = steps_done(folder / STATE, epochs=True) >= setting.epochs
    return whole and (not certify or (folder / "end.json").exists())


def _refuse_another(setting: TrainingSetting, folder: Path) -> None:
    """Raise if a folder holds a run of another setting, or one that is not of a figure."""
    file, plain = folder / SETTING, json.loads(json.dumps(setting.to_dict()))
    if not file.exists():
        others = [name for name in (CONFIG, METRICS, STATE) if (folder / name).exists()]
        if others:
            raise InputError(f"{folder} contains {', '.join(others)}, which is not part of a run. Use another folder.")
        return
    known = json.loads(file.read_text())
    differing = sorted(key for key in plain if known.get(key) != plain[key])
    if differing:
        raise InputError(
            f"{folder} contains a run with other settings ({', '.join(differing)}). Use another folder, or remove it."
        )


def _certified(model: nn.Module, probe: Tensor, name: str) -> Result:
    """Bound the network as it is now, on the probe, with running statistics."""
    from normscope.analysis import analyze

    was = model.training
    model.eval()
    try:
        result = analyze(model, probe, name=name, tolerance=TOLERANCE, stacked=False)
    finally:
        model.train(was)
    return result


def into_unit_ball(images: Tensor) -> Tensor:
    r"""Return :math:`x / \max_i \lVert x_i \rVert`, so that every example has norm at most one.

    >>> import torch
    >>> into_unit_ball(torch.tensor([[3.0, 4.0], [0.0, 2.5]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.5000]])
    """
    largest = float(images.flatten(1).norm(dim=1).max()) if images.numel() else 0.0
    return images / largest if largest > 0 else images


def enlarged(images: Tensor, side: int) -> Tensor:
    """Return images with three channels, enlarged to a side length by nearest-neighbour interpolation.

    >>> import torch
    >>> enlarged(torch.ones(2, 1, 8, 8), 16).shape
    torch.Size([2, 3, 16, 16])
    """
    larger = F.interpolate(images, size=(side, side), mode="nearest")
    return larger.expand(-1, 3, -1, -1).contiguous() if larger.shape[1] == 1 else larger
