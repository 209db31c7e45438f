"""The state that all attacks on one model share: the copy that is run, the data points, and the attacks so far."""

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
from normscope.testing.hooked_model import HookedModel, ModuleCall, ModuleTrace, Place
from normscope.testing.input_pairs import InputPair
from normscope.testing.refutation import Attack

Progress = Callable[[str], None]


@dataclass(eq=False)
class AttackContext:
    """State that all attacks on one model share."""

    model: nn.Module  #: the user's own, never run
    batch: ModelInputs  #: the data as one batch
    result: Result  #: what is attacked
    hooked: HookedModel  #: the copy that is run
    data: Tensor  #: the data points, one per row
    trace: ModuleTrace  #: inputs and outputs of all modules at the data points
    independent: bool  #: whether the rows of a batch can be run together
    generator: torch.Generator  #: of all random numbers
    effort: float  #: how long to search; one is usual
    say: Progress  #: called with a line of text at each step
    attacks: list[Attack] = field(default_factory=list)  #: numbers attacked so far
    skipped: list[tuple[str, str]] = field(default_factory=list)  #: numbers that were not attacked, and why

    @property
    def covers_all_inputs(self) -> bool:
        """Whether a point consists of all inputs that the analysis perturbs."""
        return len(self.hooked.shapes) == len(self.result.input["blocks"])

    @property
    def noise(self) -> float:
        """Relative rounding error of the values that the copy computes."""
        return self.hooked.noise

    def compare(
        self, table: str, name: str, number: str, claim: Value | None, found: InputPair | float, how: str
    ) -> None:
        """Test something attained (or the truth, for what claims to be attained) against one number.

        ``found`` is a pair, or a natural logarithm; infinite and uncertified claims are ignored.
        """
        if claim is None or claim.log == math.inf or claim.kind not in (Kind.CERTIFIED, Kind.LOWER):
            return
        log = found.log if isinstance(found, InputPair) else found
        self.attacks.append(Attack(table, name, number, claim.domain, claim.log, log, claim.kind is Kind.LOWER, how))

    def skip(self, number: str, reason: str) -> None:
        """Record a number that is not attacked, and why."""
        self.skipped.append((number, reason))

    def attempt(self, what: str, step: Callable[..., None], *args: Any) -> None:
        """Run one attack; if it fails, record why and continue."""
        try:
            step(self, *args)
        except (NormscopeError, RuntimeError, ValueError, TypeError, LookupError) as error:
            self.skip(what, f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")

    def random(self, *shape: int) -> Tensor:
        """Return standard normal numbers."""
        return torch.randn(shape, generator=self.generator, dtype=torch.float64)

    def rows(self, x: Tensor, calls: Sequence[Place], hooked: HookedModel | None = None) -> dict[Place, Tensor]:
        """Return the outputs of module calls (``None``: of the model) at points, one row per point."""
        model = self.hooked if hooked is None else hooked
        if self.independent and model.stacked is False:
            trace = model(x)
            return {call: trace.rows(call) for call in calls}
        traces = [model(row[None]) for row in x]
        return {call: torch.cat([t.rows(call) for t in traces]) for call in calls}

    def output(self, x: Tensor) -> Tensor:
        """Return the outputs of the model at points, one row per point."""
        return self.rows(x, [None])[None]


def split_batch(batch: ModelInputs, size: int = 1) -> list[ModelInputs]:
    """Split a batch into batches of some size, by default single samples."""
    n = batch.batch
    cut = lambda v, i: v[i : i + size] if isinstance(v, Tensor) and v.ndim and v.shape[0] == n else v  # noqa: E731
    return [
        ModelInputs(tuple(cut(a, i) for a in batch.args), {k: cut(v, i) for k, v in batch.kwargs.items()})
        for i in range(0, n - size + 1, size)
    ]


def stacked_model(context: AttackContext, size: int, *, batch_statistics: bool) -> HookedModel:
    """Return the model as a function of a point that stacks the first samples."""
    first = split_batch(context.batch, size)[0]
    kind = "embedding output" if context.hooked.starts_at_embeddings else "input"
    blocks = [{"shape": (size, *shape[1:]), "kind": kind} for shape in context.hooked.shapes]
    return HookedModel(context.model, first, blocks, batch_statistics=batch_statistics)


def find_calls(names: Iterable[str], hooked: HookedModel, trace: ModuleTrace) -> dict[str, ModuleCall | str]:
    """Return the module call that each row of a table describes, or the reason why there is none.

    A module that is called more than once has one row per call, numbered ``name#1``, ``name#2``.
    """
    given = list(names)
    split = {name: _split(name, hooked) for name in given}
    rows = Counter(base for base, _ in split.values())
    calls = Counter(name for name, _ in trace.order)
    found: dict[str, ModuleCall | str] = {}
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
    """Return the module path and the call number in the name of a row."""
    base, mark, turn = name.rpartition("#")
    base, number = (base, int(turn) - 1) if mark and turn.isdigit() else (name, 0)
    if base not in hooked.modules:
        parent, _, last = base.rpartition(".")
        if parent in hooked.modules and hasattr(hooked.modules[parent], last):
            return parent, number  # the row is named after a weight
    return base, number


def only_normalizes(context: AttackContext, call: ModuleCall) -> bool:
    """Return whether a module is a normalizer and nothing else, by its class name or by its behaviour.

    Far from zero a normalizer is invariant under scaling, odd up to a shift, and does not mix entries: two different
    spikes have the same effect on all other entries of a row.
    """
    if any(part in type(context.hooked.modules[call[0]]).__name__.lower() for part in ("norm", "grn")):
        return True
    apply, seen = context.hooked.function(call), context.trace.before[call]
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
class StatisticGroups:
    """The groups of entries that a normalizer computes statistics of, and the least standard deviation on the data."""

    view: tuple[int, ...]  #: shape whose axes separate the groups, samples first
    axes: tuple[int, ...]  #: axes of that shape to average over
    centered: bool  #: whether the mean is subtracted
    floor: Tensor  #: least standard deviation of each group, or of all

    def spread(self, x: Tensor) -> Tensor:
        """Return the standard deviation (uncentred: the root mean square) of each group, axes kept."""
        x = x.reshape(-1, *self.view[1:])
        if self.centered:
            x = x - x.mean(self.axes, keepdim=True)
        return x.square().mean(self.axes, keepdim=True).sqrt()

    def inside(self, x: Tensor, n: int) -> Tensor:
        """Return for each of n samples whether all its groups are above the floor."""
        return (self.spread(x) >= self.floor * (1 + 1e-12)).reshape(n, -1).all(1)

    def at_edge(self, x: Tensor, margin: float = 1e-3) -> Tensor:
        """Return the inputs with every group rescaled to slightly above its floor."""
        flat = x.reshape(-1, *self.view[1:])
        mean = flat.mean(self.axes, keepdim=True) if self.centered else 0.0
        scale = self.floor * (1 + margin) / self.spread(x).clamp_min(1e-300)
        return ((flat - mean) * scale + mean).reshape(x.shape)


def groups_of(
    row: NormalizerResult, module: nn.Module, seen: Tensor, apply: Callable[[Tensor], Tensor]
) -> StatisticGroups | None:
    """Return the groups of a normalizer, or ``None`` if scaling each by its own factor changes the output.

    ``seen`` is what went into the module at the data, samples first.
    """
    size, floor = row.details.get("group_size"), row.floor
    if floor is None or size is None or row.kind == "batch_norm":
        return None
    view, axes, single = _layout(row.kind, module, tuple(seen.shape), int(size))
    if view is None:
        return None
    groups = StatisticGroups(view, axes, row.kind != "rms_norm", torch.tensor(floor, dtype=torch.float64))
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
    return StatisticGroups(view, axes, groups.centered, least.clamp_min(floor))


def _layout(
    kind: str, module: nn.Module, shape: tuple[int, ...], size: int
) -> tuple[tuple[int, ...] | None, tuple[int, ...], bool]:
    """Return the view, the axes to average over, and whether all groups share one floor."""
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
