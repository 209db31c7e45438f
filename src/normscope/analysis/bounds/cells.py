"""Cells of inputs for Theorem 20: bounded losses, counts and distances of the data, certified constants on cells."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.analysis.around_data import BALL_WORK, ball_seconds
from normscope.analysis.bounds.measured_network import MeasuredNetwork
from normscope.analysis.bounds.result import RefusedError
from normscope.analysis.bounds.scores import Scores
from normscope.core.errors import InputError
from normscope.generalization.margins import flat_cells, margins, ramp_loss
from normscope.generalization.partition import Partition, grid, voronoi
from normscope.graph.interpreter import run
from normscope.lipschitz.local.ball import on_balls
from normscope.operators.program import Program

#: Losses by name.
LOSSES = ("ramp", "probability", "cross-entropy")
#: Random centres of the cells if there are too many axes for a grid.
CENTRES = 100
#: Samples per cell of a grid and per label: the statistical term is then about 0.1.
EACH = 32
#: Estimated CPU seconds that may be spent on constants on cells.
SECONDS = 30.0


@dataclass(frozen=True)
class BoundedLoss:
    """A loss between 0 and 1."""

    name: str  #: what it is
    constant: float  #: its Lipschitz constant in the scores, Euclidean norm
    of: str  #: what its expectation bounds
    values: Callable[[Tensor, Tensor], Tensor]  #: of samples, from scores and classes
    gamma: float | None = None  #: margin from which it is zero, for a ramp


def bounded_losses(name: str, gammas: list[float], clip: float | None) -> list[BoundedLoss]:
    """Return the losses to try: the ramp of the margin at each gamma, or the named one.

    ``1 - p_y`` has gradient ``-p_y (e_y - p)``, of norm at most ``sqrt(2) p_y (1 - p_y) <= sqrt(2)/4``. Cross-entropy
    cut at the probability ``c`` and divided by ``ln(1/c)`` has constant ``sqrt(2)/ln(1/c)``.
    """
    if name not in LOSSES:
        raise InputError(f"Expected a loss among {', '.join(LOSSES)}, got {name!r}.")
    if name == "ramp":
        return [_ramp(gamma) for gamma in gammas]
    if name == "probability":
        return [BoundedLoss("1 - p_y", math.sqrt(2) / 4, "expected 1 - p_y", lambda s, y: 1 - _right(s, y))]
    if clip is None or not 0 < clip < 1:
        raise RefusedError("cross-entropy is unbounded: clip it (clip=0.001 keeps probabilities above 0.001)")
    scale = math.log(1 / clip)
    label, of = f"cross-entropy clipped at {clip:g}, over {scale:.3g}", "expected clipped cross-entropy"
    return [BoundedLoss(label, math.sqrt(2) / scale, of, lambda s, y: -_right(s, y).clamp_min(clip).log() / scale)]


def _ramp(gamma: float) -> BoundedLoss:
    constant = math.sqrt(2) / gamma
    name = f"ramp at {gamma:.4g}"
    return BoundedLoss(name, constant, "this network", lambda s, y: ramp_loss(margins(s, y), gamma), gamma)


def _right(scores: Tensor, labels: Tensor) -> Tensor:
    """Return the probability of the right class."""
    return torch.softmax(scores.double(), 1).gather(1, labels.unsqueeze(1)).squeeze(1)


@dataclass(frozen=True)
class CellStatistics:
    """Counts and distances of the data in the cells of a partition, one cell for each label (label fastest)."""

    counts: Tensor  #: samples in each cell
    diameters: Tensor  #: of each cell
    #: the cells of the training samples that are kept, and of the test samples that are kept
    places: tuple[Tensor, Tensor]
    distances: Tensor  #: between these samples
    mean_distance: float  #: mean distance of a training sample from test inputs in its cell, estimated from random ones

    @property
    def cells(self) -> int:
        """Return the number of cells."""
        return len(self.counts)

    @property
    def occupied(self) -> int:
        """Return the number of cells with a training sample."""
        return int((self.counts > 0).sum())

    @property
    def diameter(self) -> float:
        """Return the largest diameter."""
        return float(self.diameters.max())

    def mean(self, values: Tensor) -> float:
        """Return ``sum_i (m_i/m) v_i``."""
        taken = self.counts > 0
        return math.fsum((self.counts[taken].double() * values[taken].double()).tolist()) / int(self.counts.sum())


@dataclass(frozen=True)
class LocalConstants:
    """Certified constants of the scores on the cells of inputs."""

    scores: Tensor  #: constant of the scores on each cell of inputs
    margins: Tensor  #: at the middle of the ball that holds a cell, a column for each label
    radii: Tensor  #: of these balls
    balls: int  #: how many cells have a constant of their own; the others have that on all inputs
    note: str = ""  #: why some have none

    def of_loss(self, loss: BoundedLoss) -> Tensor:
        """Return the constant of a loss on each cell, for each label separately; zero where the ramp is flat."""
        classes = self.margins.shape[1]
        steep = (loss.constant * self.scores)[:, None].expand(-1, classes)
        if loss.gamma is None:
            return steep.flatten()
        # the margin is sqrt(2)-Lipschitz in the scores
        flat = flat_cells(self.margins, math.sqrt(2) * self.scores[:, None], self.radii[:, None], loss.gamma)
        return torch.where(flat, 0.0, steep).flatten()


def default_partition(
    box: tuple[Tensor, Tensor] | None, samples: int | None, classes: int, seed: int
) -> Partition | None:
    """Return cells in a box that depend only on the box and on the numbers of samples and classes.

    With few axes, boxes of a grid with a few dozen samples each; otherwise Voronoi cells of random centres, which are
    nearly as wide as the box.
    """
    if box is None:
        return None
    low, high = box
    along = int(((samples or 1) / (EACH * classes)) ** (1 / len(low)) + 1e-9)
    if along > 1:
        return grid(low.tolist(), high.tolist(), [along] * len(low))
    source = torch.Generator().manual_seed(seed)
    centres = low + (high - low) * torch.rand(CENTRES, len(low), generator=source, dtype=torch.float64)
    return voronoi(centres, low.tolist(), high.tolist())


def cell_statistics(partition: Partition | None, train: Scores, test: Scores) -> CellStatistics:
    """Return the counts and distances of the data in the cells of a partition."""
    if partition is None:
        raise RefusedError(
            "it needs a box that contains the inputs, fixed before the data: pass box=(low, high) or --box LOW,HIGH, "
            "or use pixels"
        )
    for refusal in (train.refusal, test.refusal):
        if refusal:
            raise RefusedError(refusal)
    classes = train.classes
    counts = torch.bincount(train.cells * classes + train.labels, minlength=partition.cells * classes)
    diameters = partition.diameters.double().expand(partition.cells).repeat_interleave(classes)
    here, there = (s.some.flatten(1).double() for s in (train, test))
    ours, theirs = ((s.cells * classes + s.labels)[s.chosen] for s in (train, test))
    same = ours[:, None] == theirs[None, :]
    apart = torch.cdist(here, there)
    with_some = same.any(1)
    each = (apart * same).sum(1)[with_some] / same.sum(1)[with_some]
    widest = float(diameters.max())
    mean = float(each.mean()) if len(each) else widest
    return CellStatistics(counts, diameters, (ours, theirs), apart, min(mean, widest))


def local_constants(network: MeasuredNetwork, partition: Partition, counts: Tensor, classes: int) -> LocalConstants:
    """Return certified constants on the cells with most samples, as many as are affordable."""
    program = network.context.program
    middles, radii = partition.middles, partition.radii
    shared = middles is None or len(middles) == 1  # one ball for all
    everywhere = math.exp(network.constant.log) * (1 + 1e-12) if network.constant.log < 700 else math.inf
    constants = torch.full((partition.cells,), everywhere, dtype=torch.float64)
    weight = counts.reshape(-1, classes).sum(1)
    note, done = "", 0
    if middles is None or radii is None:
        note = "the partition does not say which balls contain its cells"
        radii, margin = partition.diameters, torch.zeros(partition.cells, classes)
    else:
        margin = _margins_at(network, middles).expand(partition.cells, classes)
        each, affordable = _affordable(program)
        order = [0] if shared else weight.argsort(descending=True, stable=True)[: int((weight > 0).sum())].tolist()
        if not affordable:
            note = f"constants on cells were skipped: about {each:.0f} s for each"
        elif affordable < len(order):
            note = f"constants on {affordable} of {len(order)} cells, at about {each:.2g} s each"
        for number, cell in enumerate(order[:affordable]):
            network.say(f"constants on cells: {number + 1} of {min(len(order), affordable)}")
            point = middles[cell].reshape(1, *network.captured.example[0].shape[1:])
            ball = on_balls(program, network.steps, [point], [float(radii.expand(len(middles))[cell])], work=BALL_WORK)
            found = ball[0].constant
            note = note or (f"no constant on a cell: {ball[0].why}" if ball[0].why else "")
            if shared:
                constants = constants.clamp_max(found)
            else:
                constants[cell] = min(float(constants[cell]), found)
            done += math.isfinite(found)
    if not bool(constants[weight > 0].isfinite().any()):
        raise RefusedError("the network has no finite Lipschitz constant, on all inputs or on the cells")
    wide = radii.double().expand(partition.cells)
    return LocalConstants(constants, margin.double(), wide, partition.cells if shared and done else done, note)


def _affordable(program: Program) -> tuple[float, int]:
    """Return the seconds per ball, estimated from the size of a network, and how many balls the time allows."""
    blocks = program.blocks
    if len(blocks) != 1 or blocks[0].kind != "input":
        return math.inf, 0
    each = ball_seconds(program)
    return each, int(SECONDS / each)


def _margins_at(network: MeasuredNetwork, points: Tensor) -> Tensor:
    """Return the margin of every label at some points, in float64."""
    captured = network.captured
    inputs = points.reshape(len(points), *captured.example[0].shape[1:])
    tensors = {n: t.double() if t.is_floating_point() else t for n, t in captured.tensors.items()}
    with torch.no_grad():
        scores = run(captured.graph, tensors, [inputs], dtype=torch.float64)[0]
    classes = scores.shape[1]
    return torch.stack([margins(scores, torch.full((len(points),), c)) for c in range(classes)], 1)
