"""Bounds beside their targets: on all inputs, around points, over data; an SDP solver, eclipse-nn, auto_LiRPA."""

from __future__ import annotations

import math
import os
import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.bound_peers import eclipse, lirpa, tried
from benchmarks.machine import Clock, Failure, environment, stream, version
from normscope import analyze
from normscope.analysis.around_data import ASKED_BALL_WORK
from normscope.graph.capture import capture
from normscope.graph.inputs import as_inputs
from normscope.lipschitz.chains.certificate import certify_form
from normscope.lipschitz.chains.chain_form import chain
from normscope.lipschitz.chains.join import Chains
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.local.balanced_channels import balanced_program, with_balanced_channels
from normscope.lipschitz.local.ball import on_balls
from normscope.lipschitz.local.linear_steps import Steps
from normscope.lipschitz.local.share_of_inputs import covering_rank
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.operators.program import Program, build_program
from normscope.zoo import build
from normscope.zoo.data.load import load_data
from normscope.zoo.state_dict import load_weights
from normscope.zoo.train import he_normal_, train

Say = Callable[[str], None]
#: One measurement: what, the value, the target and its side, CPU seconds, a remark.
Item = dict[str, Any]
#: The folder with CIFAR-10, MNIST and ``checkpoints/resnet20_cifar10.pt``.
DATA = Path(os.environ.get("NORMSCOPE_DATA", "data"))


@dataclass(frozen=True)
class Settings:
    """What to measure.

    Attributes:
        points: points of the demo around which balls are looked at.
        images: images whose Jacobian is measured, and around which balls are looked at.
        hidden: widths of the large MLP.
        seconds: of search for it.
        epochs: of training.
        cases: what to measure; empty is everything.
        only: measure these cases alone, if there are any.
        known: cases not to measure.
    """

    points: int = 100
    images: tuple[int, int] = (300, 1)
    hidden: tuple[int, ...] = (512,) * 9
    seconds: float = 40.0
    epochs: int = 20
    cases: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    known: tuple[str, ...] = ()


QUICK = Settings(points=2, images=(1, 1), hidden=(8, 8), seconds=0.2, epochs=1, cases=("MLP",))


def item(what: str, value: float, side: str, target: float | None, cpu: float, note: str = "") -> Item:
    """Return one measurement."""
    met = None if target is None else value <= target if side == "<=" else value >= target
    return {"what": what, "value": value, "side": side, "target": target, "met": met, "cpu": cpu, "note": note}


def demo_network(norm: str, epochs: int) -> nn.Module:
    """Return the network of ``normscope demo``, trained."""
    model = build("relu10", norm=norm, width=128, in_features=64)
    he_normal_(model, torch.Generator().manual_seed(0))
    batch = load_data("digits", split="train").tensors()
    train(model, batch.inputs, batch.labels, epochs=epochs, seed=0)
    return model.eval()


def demo(norm: str, settings: Settings) -> Iterator[Item]:
    """Measure the demo's network: all inputs, attained, and balls around held-out digits."""
    start = Clock.now()
    model = demo_network(norm, settings.epochs)
    trained = start.since().cpu
    targets = {"bn": (5100, 150, {0.003: 75, 0.01: 160, 0.02: None}), "none": (410, 95, {0.01: None, 0.05: 105})}
    above, below, radii = targets[norm]
    start = Clock.now()
    data = load_data("digits", split="test").tensors().inputs
    result = analyze(model, data, radius=tuple(radii), seed=0)
    spent = start.since().cpu
    everywhere, lower, floor = (result.end_to_end[k] for k in ("global", "lower_everywhere", "global_floor"))
    yield item("all inputs, proved", math.exp(everywhere.log), "<=", above, spent, "CPU time of the whole analysis")
    yield item("all inputs, attained", math.exp(lower.log), ">=", below, spent)
    yield item("no method of the kind goes below", math.exp(floor.log), ">=", None, spent)
    rows = result.around.neighbourhoods
    for row in rows:
        limit = radii.get(row.radius)
        bound = math.inf if row.bound is None else math.exp(row.bound.log)
        yield item(f"95 % of held-out digits within {row.radius:g}", bound, "<=", limit, row.seconds, "CPU s a point")
        ratio = statistics.median(a / b for a, b in zip(row.constants, rows[0].constants, strict=True))
        most = {("bn", 0.01): 2.0, ("bn", 0.02): 4.0}.get((norm, row.radius))
        if row.radius:
            yield item(f"median over the Jacobian within {row.radius:g}", ratio, "<=", most, row.seconds)
    yield item("CPU s of a point and radius, the largest", max(r.seconds for r in rows), "<=", 0.1, spent)
    yield item("training, CPU s", trained, "<=", None, trained)


def mlp(settings: Settings) -> Iterator[Item]:
    """Measure a wide MLP with He weights."""
    model = build("mlp", hidden=list(settings.hidden), in_features=3072 if settings.hidden[0] > 100 else 12, classes=10)
    he_normal_(model, torch.Generator().manual_seed(0))
    weights = [m.weight.detach() for m in model.modules() if isinstance(m, nn.Linear)]
    start = Clock.now()
    found = certify_form(chain(weights), seconds=settings.seconds)
    value = math.inf if found is None else math.exp(found[0])
    target = 470 if settings.hidden == Settings.hidden else None
    yield item("all inputs, proved", value, "<=", target, start.since().cpu, "60 CPU s allowed")
    product = math.prod(float(torch.linalg.matrix_norm(w.double(), 2)) for w in weights)
    yield item("product of norms", product, "<=", None, 0.0)
    value, spent, why = tried(lambda: eclipse(model, "ECLipsE_Fast"))
    yield item("eclipse-nn, ECLipsE-Fast", value, "<=", None, spent, why)


#: Small networks on which LipSDP-Neuron is solved.
SMALL = ((8, 20, 20, 3), (8, 24, 24, 24, 4), (10, 16, 16, 16, 4))


def sdp(settings: Settings) -> Iterator[Item]:
    """Compare with the optimum of LipSDP-Neuron by an interior-point solver."""
    if version("cvxpy") is None:
        yield item("cvxpy is not installed", math.nan, "<=", None, 0.0)
        return
    for sizes in SMALL:
        model = build("mlp", hidden=list(sizes[1:-1]), in_features=sizes[0], classes=sizes[-1])
        he_normal_(model, torch.Generator().manual_seed(1))
        weights = [m.weight.detach().double() for m in model.modules() if isinstance(m, nn.Linear)]
        name = "-".join(map(str, sizes))
        start = Clock.now()
        optimum = lipsdp(weights)
        theirs = start.since().cpu
        start = Clock.now()
        found = certify_form(chain(weights), seconds=2.0)
        ours = start.since().cpu
        value = math.inf if found is None else math.exp(found[0])
        note = f"solver {optimum:.6g} in {theirs:.2g} CPU s; ours {value:.6g}"
        yield item(f"{name}: over the optimum of LipSDP-Neuron", value / optimum, "<=", 1.001, ours, note)
        yield item(f"{name}: our time over the solver's", ours / theirs, "<=", 0.1, ours)


def lipsdp(weights: Sequence[Tensor]) -> float:
    """Return the optimum of LipSDP-Neuron for slopes in [0, 1], by Clarabel."""
    import cvxpy
    import numpy as np

    arrays = [w.numpy() for w in weights]
    sizes = [w.shape[1] for w in arrays]
    starts = np.cumsum([0, *sizes])
    total = int(starts[-1])

    def place(k: int) -> Any:
        """Return the matrix that picks the k-th vector."""
        picked = np.zeros((sizes[k], total))
        picked[:, starts[k] : starts[k + 1]] = np.eye(sizes[k])
        return picked

    square = cvxpy.Variable()
    form = square * (place(0).T @ place(0)) - place(len(sizes) - 1).T @ arrays[-1].T @ arrays[-1] @ place(
        len(sizes) - 1
    )
    multipliers = [cvxpy.Variable(n, nonneg=True) for n in sizes[1:]]
    for k, given in enumerate(multipliers, 1):
        inner = place(k).T @ cvxpy.diag(given) @ (arrays[k - 1] @ place(k - 1) - place(k))
        form = form - (inner + inner.T)
    problem = cvxpy.Problem(cvxpy.Minimize(square), [(form + form.T) / 2 >> 0])
    problem.solve(solver=cvxpy.CLARABEL)
    return math.sqrt(float(square.value))


def program_of(model: nn.Module, x: Tensor) -> Program:
    """Return the program of a model for one input."""
    captured = capture(model, as_inputs((x,), model))
    return build_program(captured.graph, captured.tensors, captured.at_batch(1))


def for_balls(model: nn.Module, x: Tensor) -> tuple[Program, Steps]:
    """Return the program of a model with balanced channels, and the bounds of its linear operations."""
    captured = with_balanced_channels(capture(model, as_inputs((x,), model)))
    return balanced_program(captured, captured.at_batch(1)), Steps(SegmentNorms(Effort(1e-2, 1e-9, 0)))


def resnet20() -> nn.Module:
    """Return the public ResNet-20 on CIFAR-10."""
    model = build("resnet20")
    load_weights(model, DATA / "checkpoints" / "resnet20_cifar10.pt")
    return model.eval()


def images(count: int) -> Tensor:
    """Return test images of CIFAR-10 as that network takes them."""
    return load_data("cifar10:imagenet", root=DATA, limit=count).tensors().inputs


def resnet20_everywhere(settings: Settings) -> Iterator[Item]:
    """Measure the bound of ResNet-20 on all inputs."""
    program = program_of(resnet20(), images(1))
    start = Clock.now()
    norms = SegmentNorms(Effort(1e-2, 1e-9, 0))
    plain = Composition(program, Domain(), norms).total()[0]
    value = Composition(program, Domain(), norms, Chains(program, seconds=150.0)).total()[0]
    yield item("all inputs, proved", math.exp(value), "<=", 4.5e6, start.since().cpu, "200 CPU s allowed")
    yield item("all inputs, by composition", math.exp(plain), "<=", None, 0.0)


def resnet20_at(settings: Settings) -> Iterator[Item]:
    """Measure the Jacobians of ResNet-20 at test images."""
    start = Clock.now()
    model, points = resnet20(), images(settings.images[0])
    result = analyze(model, points, radius=0.0, without_normalizers=False)
    (row,) = result.around.neighbourhoods
    count = len(row.constants)
    covered = math.ceil(0.95 * count)
    what, note = f"95 % of these {count} images, at the image", f"rank {covered}; float64, rounding not enclosed"
    yield item(what, sorted(row.constants)[covered - 1], "<=", 52, row.seconds, f"CPU s an image; {note}")
    bound = math.inf if row.bound is None else math.exp(row.bound.log)
    what = f"95 % of images like these {count} (confidence 99 %), at the image"
    yield item(what, bound, "<=", None, row.seconds, "CPU s an image; float64, rounding not enclosed")
    rank = covering_rank(len(points), 0.95, 0.99)
    if rank is not None:
        start_again = Clock.now()
        floor = sorted(jacobian_norm(model, x) for x in points.double().split(1))[rank - 1]
        note = f"autograd and SVD at the image of rank {rank}, which confidence 99 % asks for: no bound is smaller"
        yield item("Jacobian at the image that decides", floor, "<=", None, start_again.since().cpu, note)
    yield item("median Jacobian", row.median, "<=", None, row.seconds)
    yield item("largest Jacobian", row.largest, "<=", None, start.since().cpu, "CPU time of the whole analysis")


def jacobian_norm(model: nn.Module, x: Tensor) -> float:
    """Return the norm of the Jacobian at one point, in float64."""
    jacobian = torch.autograd.functional.jacobian(model.double(), x.double()).reshape(-1, x.numel())
    return float(torch.linalg.matrix_norm(jacobian, 2))


def balls(
    model: nn.Module, points: Tensor, targets: dict[float, float | None], allowed: float, *, sketched: bool = False
) -> Iterator[Item]:
    """Measure constants on balls over the Jacobian at their centres."""
    program, steps = for_balls(model, points[:1])
    ratios: dict[float, list[float]] = {radius: [] for radius in targets}
    spent: dict[float, list[float]] = {radius: [] for radius in targets}
    units: dict[float, list[int]] = {radius: [] for radius in targets}
    why = kind = ""
    for x in points.double().split(1):
        norm = jacobian_norm(model, x)
        for ball in on_balls(program, steps, [x], sorted(targets), work=ASKED_BALL_WORK, sketched=sketched):
            ratios[ball.radius].append(ball.constant / norm)
            spent[ball.radius].append(ball.seconds)
            units[ball.radius].append(ball.units)
            why = ball.why or why
            kind = "certified" if ball.delta == 0 else f"probabilistic, {ball.delta:.0e}"
    for radius, target in targets.items():
        note = (
            f"largest {max(ratios[radius]):.3g}; units {min(units[radius])}-{max(units[radius])}; {kind}; {why}".rstrip(
                "; "
            )
        )
        way = "sketched, " if sketched else ""
        what = f"{way}within {radius:g} over the Jacobian, median of {len(points)}"
        yield item(what, statistics.median(ratios[radius]), "<=", target, max(spent[radius]), note)
        yield item(
            f"{way}within {radius:g}: CPU s a point, the largest", max(spent[radius]), "<=", allowed, max(spent[radius])
        )


def resnet20_balls(settings: Settings) -> Iterator[Item]:
    """Measure balls around test images of ResNet-20."""
    points, targets = images(settings.images[1] + 1)[1:], {0.003: 1.5, 0.005: 2.0}
    yield from balls(resnet20(), points, targets, 90.0)
    yield from balls(resnet20(), points, targets, 30.0, sketched=True)


def mnist_cnn(settings: Settings) -> Iterator[Item]:
    """Train a network of two convolutions on MNIST and measure balls around test images."""
    torch.manual_seed(0)
    model = nn.Sequential(
        *(nn.Conv2d(1, 16, 4, 2, 1), nn.ReLU(), nn.Conv2d(16, 32, 4, 2, 1), nn.ReLU()),
        *(nn.Flatten(), nn.Linear(1568, 64), nn.ReLU(), nn.Linear(64, 10)),
    )
    batch = load_data("mnist", root=DATA, split="train", limit=10_000).tensors()
    train(model, batch.inputs, batch.labels, epochs=2, seed=0)
    points = load_data("mnist", root=DATA, limit=3).tensors().inputs
    yield from balls(model.eval(), points, {0.05: 2.0, 0.5: 7.0}, 5.0)


def vit(settings: Settings) -> Iterator[Item]:
    """Train a small ViT with LayerNorm on digits and measure balls around test digits."""
    model = build("vit_tiny", classes=10, image_size=8, patch=2, width=48, depth=4, heads=4)
    batch = load_data("digits", split="train").tensors()
    wide = batch.inputs.expand(-1, 3, -1, -1).contiguous()
    train(model, wide, batch.labels, epochs=12, seed=0)
    points = load_data("digits", split="test", limit=1).tensors().inputs.expand(-1, 3, -1, -1).contiguous()
    yield from balls(model.eval(), points, {0.003: 2.0, 0.005: 3.5}, 60.0)


def peers(settings: Settings) -> Iterator[Item]:
    """Compare with eclipse-nn on all inputs and with auto_LiRPA around digits, on the same trained network."""
    model = build("mlp", hidden=[64, 64, 64], in_features=64, classes=10)
    he_normal_(model, torch.Generator().manual_seed(0))
    batch = load_data("digits", split="train").tensors()
    train(model, batch.inputs, batch.labels, epochs=settings.epochs, seed=0)
    model = nn.Sequential(*(m for m in model.modules() if isinstance(m, nn.Linear | nn.ReLU))).eval()
    weights = [m.weight.detach() for m in model if isinstance(m, nn.Linear)]
    start = Clock.now()
    found = certify_form(chain(weights), seconds=2.0)
    ours = math.inf if found is None else math.exp(found[0])
    yield item("all inputs: ours", ours, "<=", None, start.since().cpu)
    for method in ("ECLipsE", "ECLipsE_Fast"):
        value, spent, why = tried(partial(eclipse, model, method))
        yield item(f"all inputs: eclipse-nn's {method} over ours", value / ours, ">=", 1.0, spent, why)
    points = load_data("digits", split="test", limit=3).tensors().inputs.flatten(1)
    steps, program = Steps(SegmentNorms(Effort(1e-2, 1e-9, 0))), program_of(model.float(), points[:1])
    for radius in (0.05, 0.2):
        ratios, cpu, theirs, why = [], 0.0, 0.0, ""
        for x in points.split(1):
            (ball,) = on_balls(program, steps, [x.double()], [radius])
            value, spent, why = tried(partial(lirpa, model.float(), x, radius))
            ratios.append(value / ball.constant)
            cpu, theirs = cpu + ball.seconds / len(points), theirs + spent / len(points)
        note = why or f"median of {len(points)} digits; ours {cpu:.2g} CPU s a point, certified with rounding"
        what = f"within {radius:g}: auto_LiRPA's constant over ours"
        yield item(what, statistics.median(ratios), ">=", 1.0, theirs, note)


CASES: dict[str, Callable[[Settings], Iterator[Item]]] = {
    "demo BatchNorm": lambda settings: demo("bn", settings),
    "demo plain": lambda settings: demo("none", settings),
    "MLP": mlp,
    "LipSDP": sdp,
    "Peers": peers,
    "ResNet-20 on all inputs": resnet20_everywhere,
    "ResNet-20 at images": resnet20_at,
    "ResNet-20 around images": resnet20_balls,
    "MNIST CNN": mnist_cnn,
    "ViT": vit,
}


def run(settings: Settings, say: Say) -> Iterator[dict[str, Any]]:
    """Measure every case in a process of its own; yield after each."""
    rows = []
    for name, case in CASES.items():
        if any(chosen and name not in chosen for chosen in (settings.only, settings.cases)) or name in settings.known:
            continue
        items = []
        for found in stream(lambda case=case: case(settings)):  # type: ignore[misc]
            items.append(item(found.reason, math.nan, "<=", None, 0.0) if isinstance(found, Failure) else found)
            say(f"{name}: {items[-1]['what']}: {items[-1]['value']:.5g}, {items[-1]['cpu']:.3g} CPU s")
        rows.append({"name": name, "items": items})
        yield {"environment": environment(), "rows": rows}
