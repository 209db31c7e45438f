"""What all attacks on one model share: the copy it runs, the data points, and the findings so far."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import NormscopeError
from normscope.core.result import NormalizerResult, Result
from normscope.core.value import Kind, Value
from normscope.graph.inputs import ModelInputs
from normscope.testing.hooked_model import Call, HookedModel, Trace
from normscope.testing.pairs import Pair
from normscope.testing.refutation import Attack

Progress = Callable[[str], None]


@dataclass(eq=False)
class Scene:
    """What every attack on one model shares."""

    model: nn.Module  #: the user's own, never run
    batch: ModelInputs  #: the inputs of the data, stacked
    result: Result  #: what is attacked
    hooked: HookedModel  #: the copy that is run
    data: Tensor  #: points of the data, one per row
    trace: Trace  #: what the copy gives there
    independent: bool  #: whether the rows of a batch can be run together
    generator: torch.Generator  #: of everything random
    effort: float  #: how long to search; one is usual
    say: Progress  #: progress
    attacks: list[Attack] = field(default_factory=list)  #: what was attacked so far
    skipped: list[tuple[str, str]] = field(default_factory=list)  #: what was not, and why

    @property
    def whole(self) -> bool:
        """Return whether a point holds everything that the analysis lets move, so that truth is all of the truth."""
        return len(self.hooked.shapes) == len(self.result.input["blocks"])

    @property
    def noise(self) -> float:
        """Return the relative rounding of what the copy gives."""
        return self.hooked.noise

    def hold(self, table: str, name: str, number: str, claim: Value | None, found: Pair | float, how: str) -> None:
        """Hold something attained (or the truth, for what claims to be attained) against one number.

        ``found`` is a pair, or a natural logarithm; without a claimed bound nothing is held.
        """
        if claim is None or claim.log == math.inf or claim.kind not in (Kind.CERTIFIED, Kind.LOWER):
            return
        log = found.log if isinstance(found, Pair) else found
        self.attacks.append(Attack(table, name, number, claim.domain, claim.log, log, claim.kind is Kind.LOWER, how))

    def skip(self, number: str, reason: str) -> None:
        """Note a number that is not attacked."""
        self.skipped.append((number, reason))

    def attempt(self, what: str, step: Callable[..., None], *args: Any) -> None:
        """Carry out one attack; one that cannot be carried out is noted, and the others go on."""
        try:
            step(self, *args)
        except (NormscopeError, RuntimeError, ValueError, TypeError, LookupError) as error:
            self.skip(what, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")

    def random(self, *shape: int) -> Tensor:
        """Return normal numbers from the generator of this scene."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def rows(
        self, x: Tensor, calls: Sequence[Call | None], hooked: HookedModel | None = None
    ) -> dict[Call | None, Tensor]:
        """Return the tensors at some places at points, one row each."""
        model = self.hooked if hooked is None else hooked
        if self.independent and model.stacked is False:
            trace = model(x)
            return {call: trace.rows(call) for call in calls}
        traces = [model(row[None]) for row in x]
        return {call: torch.cat([t.rows(call) for t in traces]) for call in calls}


def samples_of(batch: ModelInputs, size: int = 1) -> list[ModelInputs]:
    """Return the samples of a batch, or batches of some size, as calls of the model."""
    n = batch.batch
    cut = lambda v, i: v[i : i + size] if isinstance(v, Tensor) and v.ndim and v.shape[0] == n else v  # noqa: E731
    return [
        ModelInputs(tuple(cut(a, i) for a in batch.args), {k: cut(v, i) for k, v in batch.kwargs.items()})
        for i in range(0, n - size + 1, size)
    ]


def stacked_model(scene: Scene, size: int, *, batch_statistics: bool) -> HookedModel:
    """Return the model as a function of its first samples stacked into one point."""
    first = samples_of(scene.batch, size)[0]
    kind = "embedding output" if scene.hooked.looked_up else "input"
    blocks = [{"shape": (size, *shape[1:]), "kind": kind} for shape in scene.hooked.shapes]
    return HookedModel(scene.model, first, blocks, batch_statistics=batch_statistics)


def find_calls(names: Iterable[str], hooked: HookedModel, trace: Trace) -> dict[str, Call | str]:
    """Return the call of a module behind each row of a table, or why there is none.

    A module that is called more than once has one row per call, numbered ``name#1``, ``name#2``.
    """
    given = list(names)
    split = {name: _split(name, hooked) for name in given}
    rows = Counter(base for base, _ in split.values())
    calls = Counter(name for name, _ in trace.order)
    found: dict[str, Call | str] = {}
    for name in given:
        base, turn = split[name]
        if base not in hooked.modules:
            found[name] = "no module of that name"
        elif any(True for _ in hooked.modules[base].children()):
            found[name] = "the module does more than this"
        elif calls[base] != rows[base]:
            found[name] = f"the module is called {calls[base]} times and has {rows[base]} rows"
        elif (base, turn) in hooked.mixed:
            found[name] = "its output has no sample axis"
        else:
            found[name] = (base, turn)
    return found


def _split(name: str, hooked: HookedModel) -> tuple[str, int]:
    """Return the module path and the number of the call of a row."""
    base, mark, turn = name.rpartition("#")
    base, number = (base, int(turn) - 1) if mark and turn.isdigit() else (name, 0)
    if base not in hooked.modules:
        parent, _, last = base.rpartition(".")
        if parent in hooked.modules and hasattr(hooked.modules[parent], last):
            return parent, number  # the row is named after a weight
    return base, number


def only_normalizes(scene: Scene, call: Call) -> bool:
    """Return whether a module is a normalizer and nothing else: by its name, or because it acts like one.

    Far from zero a normalizer does not notice how its input is scaled, turning the input around turns what it gives
    around, up to a shift, and two entries of a row show in all others alike: nothing is mixed.
    """
    if any(part in type(scene.hooked.modules[call[0]]).__name__.lower() for part in ("norm", "grn")):
        return True
    apply, seen = scene.hooked.function(call), scene.trace.before[call]
    generator = torch.Generator().manual_seed(0)
    a, b = (1e6 * torch.randn(seen.shape, generator=generator, dtype=torch.float64) for _ in range(2))
    first, second = torch.zeros(2, *seen.shape, dtype=torch.float64)
    first[..., :1], second[..., 1:2] = 1e6, 1e6
    with torch.no_grad():
        here = apply(a)
        if here.shape != seen.shape or seen.shape[-1] < 3:
            return False
        differences = (
            apply(3.0 * a) - here,
            here + apply(-a) - apply(b) - apply(-b),
            (apply(first) - apply(second))[..., 2:],
        )
    return max(float(d.abs().max()) for d in differences) <= 1e-3 * float(here.abs().max())


@dataclass(frozen=True, eq=False)
class Groups:
    """The groups of entries that a normalizer takes statistics of, and the least spread the data showed."""

    view: tuple[int, ...]  #: shape in which the groups are axes, the samples first
    axes: tuple[int, ...]  #: axes of that shape that are averaged
    centered: bool  #: whether the mean is taken off
    floor: Tensor  #: least spread of each group, or of all

    def spread(self, x: Tensor) -> Tensor:
        """Return the spread of each group, axes kept."""
        x = x.reshape(-1, *self.view[1:])
        if self.centered:
            x = x - x.mean(self.axes, keepdim=True)
        return x.square().mean(self.axes, keepdim=True).sqrt()

    def inside(self, x: Tensor, n: int) -> Tensor:
        """Tell for each of n samples whether all its spreads stay above the floor."""
        return (self.spread(x) >= self.floor * (1 + 1e-12)).reshape(n, -1).all(1)

    def at_edge(self, x: Tensor, margin: float = 1e-3) -> Tensor:
        """Return inputs with every spread a little above its floor."""
        flat = x.reshape(-1, *self.view[1:])
        mean = flat.mean(self.axes, keepdim=True) if self.centered else 0.0
        scale = self.floor * (1 + margin) / self.spread(x).clamp_min(1e-300)
        return ((flat - mean) * scale + mean).reshape(x.shape)


def groups_of(
    row: NormalizerResult, module: nn.Module, seen: Tensor, apply: Callable[[Tensor], Tensor]
) -> Groups | None:
    """Return the groups of a normalizer, checked: scaling each group by its own factor must not change the result.

    ``seen`` is what went into the module at the data, samples first.
    """
    size, floor = row.details.get("group_size"), row.floor
    if floor is None or size is None or row.kind == "batch_norm":
        return None
    view, axes, single = _layout(row.kind, module, tuple(seen.shape), int(size))
    if view is None:
        return None
    groups = Groups(view, axes, row.kind != "rms_norm", torch.tensor(floor, dtype=torch.float64))
    generator = torch.Generator().manual_seed(0)
    x = 1e4 * torch.randn(seen.shape, generator=generator, dtype=torch.float64)
    factor = 1.0 + torch.rand(groups.spread(x).shape, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        scaled = (x.reshape(-1, *view[1:]) * factor).reshape(x.shape)
        if not torch.allclose(apply(scaled), apply(x), rtol=1e-3, atol=1e-6):
            return None
    if single:
        return groups
    least = groups.spread(seen).amin(0, keepdim=True)
    return Groups(view, axes, groups.centered, least.clamp_min(floor))


def _layout(
    kind: str, module: nn.Module, shape: tuple[int, ...], size: int
) -> tuple[tuple[int, ...] | None, tuple[int, ...], bool]:
    """Return the view, the axes averaged in it, and whether all groups share one floor."""
    groups = getattr(module, "num_groups", None)
    if kind == "group_norm" and isinstance(groups, int):
        return (shape[0], groups, math.prod(shape[1:]) // groups), (2,), False
    if kind == "instance_norm" and len(shape) > 2:
        return (shape[0], shape[1], math.prod(shape[2:])), (2,), False
    if kind in ("layer_norm", "rms_norm"):
        for k in range(1, len(shape)):
            if math.prod(shape[k:]) == size:
                return shape, tuple(range(k, len(shape))), True
        if len(shape) > 2 and shape[1] == size:
            return shape, (1,), True
    return None, (), True
