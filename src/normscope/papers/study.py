"""Reproduced experiments of the papers: measurements as charts, and each claim beside the evidence."""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.json_form import to_plain
from normscope.core.value import json_number

T = TypeVar("T")
SCALES = ("smoke", "laptop")
Progress = Callable[[str], None]
#: Every study by its name on the command line, and its module, which has ``TITLE``, ``SETTINGS`` by scale, and ``run``:
#: it takes a setting, the first seed, the folder of data sets and a function for lines of progress.
STUDIES = {
    "geometry1": "normscope.papers.akbar2025.experiments.experiment_1_trajectories",
    "geometry2": "normscope.papers.akbar2025.experiments.experiment_2_conditioning",
    "geometry3": "normscope.papers.akbar2025.experiments.experiment_3_margins",
    "geometry4": "normscope.papers.akbar2025.experiments.experiment_4_initialization",
    "wn-depth": "normscope.papers.cisneros2025.depth_study",
    "wn-width": "normscope.papers.cisneros2025.width_study",
    "wn-convergence": "normscope.papers.cisneros2025.convergence_study",
    "wn-activation": "normscope.papers.cisneros2025.activation_study",
    "theorem-20": "normscope.papers.than2025.theorem_20_study",
    "surrogate": "normscope.papers.than2025.surrogate_study",
    "ranking": "normscope.papers.than2025.ranking_study",
}


@dataclass(frozen=True)
class StudyLine:
    """One line of a chart: the median over seeds, and their range from low to high if there are several.

    Bounds and formulas are dashed, measurements are not.
    """

    label: str
    x: tuple[float, ...]
    y: tuple[float, ...]
    low: tuple[float, ...] | None = None
    high: tuple[float, ...] | None = None
    dashed: bool = False

    @classmethod
    def over_seeds(cls, label: str, x: Sequence[float], values: Any, *, dashed: bool = False) -> StudyLine:
        """Return the median and the range over seeds.

        >>> StudyLine.over_seeds("loss", [1, 2], [[1.0, 5.0], [3.0, 7.0]]).y
        (2.0, 6.0)
        """
        table = np.asarray(values, dtype=float)
        middle, low, high = (tuple(map(float, f(table, axis=0))) for f in (np.median, np.min, np.max))
        return cls(label, tuple(float(v) for v in x), middle, low, high, dashed)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; numbers that are not finite become ``null``."""
        numbers = {key: value for key, value in vars(self).items() if isinstance(value, tuple)}
        return {**vars(self), **{key: [x if math.isfinite(x) else None for x in xs] for key, xs in numbers.items()}}


@dataclass(frozen=True)
class StudyChart:
    """One chart, with linear or logarithmic axes."""

    title: str
    x_label: str
    y_label: str
    lines: tuple[StudyLine, ...]
    log_x: bool = False
    log_y: bool = False


@dataclass(frozen=True)
class Evidence:
    """One claim of the paper and what a run shows about it."""

    claim: str  #: in our words
    network: str  #: of the run
    measured: Mapping[str, Any]  #: numbers by name, first and last of the run where they move
    #: whether the run agrees with the claim; ``None`` if the paper makes no claim or the run cannot decide it
    agrees: Any

    def __post_init__(self) -> None:
        object.__setattr__(self, "agrees", None if self.agrees is None else bool(self.agrees))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form; infinities become strings."""
        numbers = {key: json_number(float(x)) for key, x in self.measured.items()}
        return {**vars(self), "measured": numbers}


@dataclass(frozen=True)
class Study:
    """The outcome of an experiment: its charts, and each claim beside the measurements.

    The settings, including the seeds, are sufficient to repeat it.
    """

    name: str
    title: str
    scale: str
    settings: Mapping[str, Any]
    charts: tuple[StudyChart, ...]
    evidence: tuple[Evidence, ...] = field(default=())

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "study": self.name,
            "title": self.title,
            "scale": self.scale,
            "settings": dict(self.settings),
            "claims": to_plain(self.evidence),
            "panels": to_plain(self.charts),
        }


#: What a study returns: facts needed to repeat it besides its setting, its charts, and the evidence for each claim.
Findings = tuple[Mapping[str, Any], Sequence[StudyChart], Sequence[Evidence]]


def fit_line(steps: np.ndarray, values: np.ndarray) -> tuple[float, float]:
    r"""Return slope and coefficient of determination :math:`R^2` of the least-squares line through points.

    >>> [round(x, 12) for x in fit_line(np.array([0.0, 1.0, 2.0]), np.array([1.0, 3.0, 5.0]))]
    [2.0, 1.0]
    """
    x, y = steps - np.mean(steps), values - np.mean(values)
    slope = float(x @ y / (x @ x))
    total = float(y @ y)
    return slope, 1.0 - float(np.sum((y - slope * x) ** 2)) / total if total > 0 else 0.0


def labelled_data(name: str, root: str | Path | None, split: str, limit: int | None = None) -> tuple[Tensor, Tensor]:
    """Return the images of a data set and their labels."""
    from normscope.zoo.data.load import load_data

    images, labels = load_data(name, root, split, limit).tensors()
    if labels is None:
        raise InputError(f"Expected labelled data, but {name} has no labels.")
    return images, labels.long()


def measure_by_seed(
    seeds: Iterable[int], places: Iterable[T], measure: Callable[[int, T], Mapping[str, float]]
) -> dict[str, np.ndarray]:
    """Measure at every place with every seed; return a table by name, one row per seed and one column per place.

    >>> measure_by_seed([1, 2], [10, 20], lambda seed, place: {"sum": seed + place})["sum"].tolist()
    [[11, 21], [12, 22]]
    """
    places = list(places)
    return stack_tables([[measure(seed, place) for place in places] for seed in seeds])


def stack_tables(rows: Sequence[Sequence[Mapping[str, float]]]) -> dict[str, np.ndarray]:
    """Split a table of named numbers into one table for each name."""
    return {name: np.array([[cell[name] for cell in row] for row in rows]) for name in rows[0][0]}


def run_study(
    name: str,
    scale: str = "laptop",
    *,
    seed: int = 0,
    data_root: str | Path | None = None,
    progress: Progress = lambda line: None,
) -> Study:
    """Reproduce an experiment of a paper.

    Args:
        name: a key of :data:`STUDIES`.
        scale: ``smoke`` (seconds, small data) or ``laptop`` (at most half an hour).
        seed: the first of the seeds.
        data_root: folder of MNIST or CIFAR-10.
        progress: called with a line of text at each step.

    Raises:
        InputError: if the study or the scale is unknown, or the data are not found.
    """
    if name not in STUDIES:
        raise InputError(f"Unknown study {name!r}. Choose from: {', '.join(STUDIES)}.")
    if scale not in SCALES:
        raise InputError(f"Unknown scale {scale!r}. Choose from: {', '.join(SCALES)}.")
    module = importlib.import_module(STUDIES[name])
    setting, root = module.SETTINGS[scale], None if data_root is None else Path(data_root)
    facts, charts, evidence = module.run(setting, seed, root, progress)
    return Study(name, module.TITLE, scale, {**asdict(setting), "seed": seed, **facts}, tuple(charts), tuple(evidence))
