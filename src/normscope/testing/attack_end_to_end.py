"""Attack the end-to-end constants and the depth curves, on each of their domains."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normscope.core.value import Value, log_of
from normscope.operators.normalizer import row_of_weights
from normscope.testing.attack_context import (
    AttackContext,
    StatisticGroups,
    find_calls,
    groups_of,
    only_normalizes,
    stacked_model,
)
from normscope.testing.attack_modules import is_affine, sample_shape
from normscope.testing.hooked_model import HookedModel, ModuleCall, Place
from normscope.testing.input_pairs import (
    InputPair,
    along,
    ascend,
    dense_norms,
    most_stretched,
    points_at_all_scales,
    quotients,
    surest_pair,
    unit,
)

#: Best pairs kept per place; points at which singular directions are computed; places at which ascent is run.
PAIRS_KEPT, START_POINTS, ASCENT_PLACES = 3, 4, 6
#: Largest number of outputs for which the whole Jacobian is formed.
ROWS = 512
Inside = Callable[[Tensor], Tensor]
#: Finds the best pair at each of some places.
Search = Callable[[Sequence[Place]], dict[Place, InputPair]]


@dataclass(eq=False)
class PairSearch:
    """A search for the pair of inputs with the largest quotient, at several places of a model at once."""

    context: AttackContext
    hooked: HookedModel  #: the model that is run
    calls: Sequence[Place]  #: the places: module calls, or ``None`` for the output
    inside: Inside | None = None  #: returns which points lie in the domain
    kept: dict[Place, list[tuple[float, Tensor, Tensor]]] = field(default_factory=dict)

    def rows(self, x: Tensor, calls: Sequence[Place] | None = None) -> dict[Place, Tensor]:
        """Return the tensors at some places, by default all."""
        return self.context.rows(x, self.calls if calls is None else calls, self.hooked)

    def function(self, call: Place) -> Callable[[Tensor], Tensor]:
        """Return the tensor at one place as a function of points."""
        return lambda x: self.rows(x, [call])[call]

    def try_pairs(self, a: Tensor, b: Tensor) -> None:
        """Try pairs at every place and keep the best."""
        if self.inside is not None:
            keep = self.inside(a) & self.inside(b)
            a, b = a[keep], b[keep]
        if not len(a):
            return
        with torch.no_grad():
            left, right = self.rows(a), self.rows(b)
        for call in self.calls:
            found = quotients((left[call], right[call]), a, b, self.context.noise)
            top = found.argsort(descending=True)[:PAIRS_KEPT]
            best = self.kept.setdefault(call, [])
            best += [(float(found[i]), a[i], b[i]) for i in top if float(found[i]) > 0]
            best.sort(key=lambda item: -item[0])
            del best[PAIRS_KEPT:]

    def run(self, points: Tensor) -> dict[Place, InputPair]:
        """Search from some points and return the best pair at each place."""
        generator = self.context.generator
        if self.inside is not None:
            points = points[self.inside(points)]
        if not len(points):
            return {}
        if not self.context.independent:  # one run for each point: fewer of them
            points = points[:: max(1, len(points) // 8)]
        for _ in range(2):
            self.try_pairs(*along(points, unit(self.context.random(*points.shape))))
        self.try_pairs(points, points.roll(1, 0))
        for normalizer in self.normalizer_calls():
            self.try_singular_directions(normalizer, self.low_variance_points(normalizer, points[:3]))
        for call in self.calls:
            self.try_singular_directions(call, self.starting_points(call, points))
        effort = self.context.effort
        step = max(1, len(self.calls) // ASCENT_PLACES)
        chosen = [*self.calls[::step], None] if None in self.calls else list(self.calls[::step])
        for call in dict.fromkeys(chosen):
            x = self.starting_points(call, points)[:3]
            a, b = ascend(self.function(call), x, generator, int(20 * effort))
            self.try_segment(x, a)
            self.try_pairs(a, b)
            self.try_singular_directions(call, self.starting_points(call, points))
        return self.best_pairs()

    def normalizer_calls(self) -> list[ModuleCall]:
        """Return some of the places that are normalizers, by their class names."""
        named = [c for c in self.calls if c is not None and "norm" in type(self.hooked.modules[c[0]]).__name__.lower()]
        return named[:: max(1, len(named) // ASCENT_PLACES)] if self.inside is None and self.context.independent else []

    def low_variance_points(self, call: ModuleCall, x: Tensor) -> Tensor:
        """Return points at which the input of a normalizer has almost no variance: there it is steepest."""
        point = x.detach().clone().requires_grad_(True)
        optimizer = torch.optim.LBFGS([point], max_iter=25, line_search_fn="strong_wolfe")

        def spread() -> float:
            optimizer.zero_grad()
            before = self.hooked(point).before[call]
            loss = (before - before.mean(-1, keepdim=True)).square().sum()
            loss.backward()
            return float(loss.detach())

        with torch.enable_grad():
            optimizer.step(spread)
        return torch.cat([point.detach().nan_to_num(0.0, 0.0, 0.0), x[:1]])

    def starting_points(self, call: Place, points: Tensor) -> Tensor:
        """Return points of the best pairs at a place, and some of the given points."""
        best = [a for _, a, _ in self.kept.get(call, [])]
        return torch.stack([*best, *points[: START_POINTS - min(len(best), START_POINTS - 1)]])

    def try_singular_directions(self, call: Place, x: Tensor) -> None:
        """Try pairs along the leading singular directions of the Jacobian at a place."""
        _, direction = most_stretched(self.function(call), x, 10, self.context.generator)
        self.try_pairs(*along(x, direction))

    def try_segment(self, start: Tensor, end: Tensor) -> None:
        """Try points on the segments between two sets of points, as far as they lie in the domain."""
        if self.inside is None:
            return
        between = torch.cat([start + t * (end - start) for t in (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)])
        self.try_pairs(*along(between, unit(self.context.random(*between.shape))))

    def best_pairs(self) -> dict[Place, InputPair]:
        """Return the best pair at each place, rounding errors subtracted."""
        found: dict[Place, InputPair] = {}
        for call, best in self.kept.items():
            if not best:
                continue
            a, b = torch.stack([p[1] for p in best]), torch.stack([p[2] for p in best])
            found[call] = surest_pair(self.function(call), a, b, self.context.noise, self.context.generator)
        return found


def depth_places(context: AttackContext) -> dict[str, tuple[int, ModuleCall]]:
    """Return the index in the depth curves and the module call of every layer and normalizer that is a module."""
    depth = context.result.depth
    rows = {
        "layer": [r.name for r in context.result.layers],
        "normalizer": [r.name for r in context.result.normalizers],
    }
    found: dict[str, tuple[int, ModuleCall]] = {}
    for kind, names in rows.items():
        calls = find_calls(names, context.hooked, context.trace)
        for i, (name, what) in enumerate(zip(depth.names, depth.kinds, strict=True)):
            if what != kind:
                continue
            call = calls.get(name, "no row of that name")
            if isinstance(call, str):
                context.skip(f"depth[{name}]", call)
            elif kind == "normalizer" and not only_normalizes(context, call):
                context.skip(f"depth[{name}]", f"{context.hooked.class_name(call)} may do more than normalize")
            elif kind == "layer" and not is_affine(context.hooked.function(call), sample_shape(context, call)):
                context.skip(f"depth[{name}]", f"{context.hooked.class_name(call)} does more than a linear map")
            else:
                found[f"{i} {name}"] = (i, call)
    return found


def attack_end_to_end(context: AttackContext) -> None:
    """Test totals and depth curves against pairs of inputs, on all inputs, on the variance floor, and on batches."""
    places = depth_places(context)
    constants = context.result.end_to_end
    _consistent(context)
    points = points_at_all_scales(context.data, context.hooked.shapes, context.generator)
    context.say("attacking the bounds on all inputs")
    context.attempt(
        "global", _attack_domain, "global", places, lambda calls: PairSearch(context, context.hooked, calls).run(points)
    )
    if constants.get("variance_floor") is not None:
        context.say("attacking the bounds on the variance floor")
        context.attempt("variance_floor", _attack_floor, places)
    if constants.get("without_normalizers") is not None:
        context.say("attacking the bounds without normalizers")
        context.attempt("without_normalizers", _attack_without, places, points)
    context.attempt("jacobian", _attack_jacobian)
    if constants.get("stacked_batch") is not None:
        context.say("attacking the bounds on a stacked batch")
        context.attempt("stacked_batch", _attack_stacked)


def _consistent(context: AttackContext) -> None:
    """Test the upper bounds in the result against its own lower bounds."""
    values = context.result.end_to_end
    for upper, lower in (
        ("global", "lower_everywhere"),
        ("global_composition", "lower_everywhere"),
        ("variance_floor", "lower"),
        ("stacked_batch", "stacked_batch_lower"),
    ):
        attained = values.get(lower)
        if attained is not None:
            context.compare("end_to_end", "", upper, values.get(upper), attained.log, f"the result's own {lower}")
    curves = context.result.depth.curves
    if "lower" in curves and "global" in curves:
        depth = context.result.depth
        for i, name in enumerate(depth.names):
            low = depth.value("lower", i)
            if low is not None:
                context.compare(
                    "depth", name, "global", depth.value("global", i), low.log, "the result's own lower curve"
                )


def _attack_domain(
    context: AttackContext, key: str, places: dict[str, tuple[int, ModuleCall]], search: Search, how: str = "pair"
) -> None:
    """Test the total and the curve of one domain against the pairs that a search finds there."""
    curve = context.result.depth.curves.get(key)
    wanted: list[tuple[str, str, Value | None, Place]] = [("end_to_end", "", context.result.end_to_end[key], None)]
    for label, (i, call) in places.items():
        value = None if curve is None else context.result.depth.value(key, i)
        wanted.append(("depth", label.partition(" ")[2], value, call))
    wanted = [w for w in wanted if w[2] is not None and w[2].log < math.inf]
    if not wanted:
        return
    found = search(list(dict.fromkeys(w[3] for w in wanted)))
    for table, name, value, place in wanted:
        if place in found:
            context.compare(table, name, key, value, found[place], how)
        else:
            context.skip(f"{table}[{name}].{key}", "no pair of points was found in the domain")


def _floors(context: AttackContext) -> dict[ModuleCall, StatisticGroups] | None:
    """Return the groups and floors of every normalizer of activations, or ``None`` if one is not known."""
    rows = [r for r in context.result.normalizers if not row_of_weights(r)]
    calls = find_calls([r.name for r in rows], context.hooked, context.trace)
    found: dict[ModuleCall, StatisticGroups] = {}
    for row in rows:
        if row.floor is None and row.on_floor is None:
            continue
        call = calls[row.name]
        if isinstance(call, str):
            return None
        apply = context.hooked.function(call)
        groups = groups_of(row, context.hooked.modules[call[0]], context.trace.before[call].detach(), apply)
        if groups is None:
            return None
        found[call] = groups
    return found


def _attack_floor(context: AttackContext, places: dict[str, tuple[int, ModuleCall]]) -> None:
    """Test the numbers on the variance floor against data, and against what lies in the domain around it."""
    value = context.result.end_to_end["variance_floor"]
    floors = _floors(context)
    ranged = value is not None and "range" in value.domain
    data = context.data
    if floors is None:  # only the data itself is known to lie inside

        def pairs_of_the_data(calls: Sequence[Place]) -> dict[Place, InputPair]:
            search = PairSearch(context, context.hooked, calls)
            search.try_pairs(data.repeat(len(data), 1), data.repeat_interleave(len(data), 0))
            return search.best_pairs()

        _attack_domain(context, "variance_floor", places, pairs_of_the_data, "pair of the data")
        return

    def inside(x: Tensor) -> Tensor:
        ok = torch.ones(len(x), dtype=torch.bool)
        if ranged:
            ok &= _in_range(x, data, context.hooked.shapes)
        if floors and bool(ok.any()):
            with torch.no_grad():
                for i in range(len(x)) if not context.independent else [slice(None)]:
                    part = x[i] if isinstance(i, slice) else x[i][None]
                    trace = context.hooked(part)
                    for call, groups in floors.items():
                        ok[i] &= groups.inside(trace.before[call], len(part)).reshape(ok[i].shape)
        return ok

    noise = context.random(*data.shape) * data.std()
    mixed = [0.5 * (data + data.roll(1, 0)), *(data * s for s in (0.5, 0.9, 0.99, 1.01, 1.5, 10.0))]
    points = torch.cat([data, *(data + s * noise for s in (0.01, 0.1, 1.0)), *mixed])
    search = lambda calls: PairSearch(context, context.hooked, calls, inside).run(points)  # noqa: E731
    _attack_domain(context, "variance_floor", places, search)


def _in_range(x: Tensor, data: Tensor, shapes: Sequence[tuple[int, ...]]) -> Tensor:
    """Return which points lie within the range and the norms of the data, tensor by tensor."""
    ok = torch.ones(len(x), dtype=torch.bool)
    sizes = [math.prod(s) for s in shapes]
    for part, seen, shape in zip(torch.split(x, sizes, 1), torch.split(data, sizes, 1), shapes, strict=True):
        rows, known = (t.reshape(len(t), -1, shape[-1] if shape else 1).norm(dim=2) for t in (part, seen))
        ok &= (part >= seen.min()).all(1) & (part <= seen.max()).all(1)
        ok &= (part.norm(dim=1) <= seen.norm(dim=1).max()) & (rows <= known.max()).all(1)
    return ok


def _attack_without(context: AttackContext, places: dict[str, tuple[int, ModuleCall]], points: Tensor) -> None:
    """Test the bound without normalizers against the model with every normalizer module made the identity."""
    value = context.result.end_to_end["without_normalizers"]
    rows = [r.name for r in context.result.normalizers if not row_of_weights(r)]
    calls = find_calls(rows, context.hooked, context.trace)
    if value is None or any(isinstance(c, str) for c in calls.values()):
        context.skip("without_normalizers", "some normalizer is not a module")
        return
    if any(r.details.get("written_out") for r in context.result.normalizers):
        context.skip("without_normalizers", "a normalizer written by hand keeps its scale, which is not a module")
        return
    bare = HookedModel(context.model, context.hooked.inputs, [])
    bare.shapes, bare.starts_at_embeddings, bare.stacked = (
        context.hooked.shapes,
        context.hooked.starts_at_embeddings,
        context.hooked.stacked,
    )
    bare.replaced_by_identity = {call[0] for call in calls.values() if not isinstance(call, str)}
    inside = None
    if "range" in value.domain:
        inside = lambda x: _in_range(x, context.data, context.hooked.shapes)  # noqa: E731
        noise = context.random(*context.data.shape) * context.data.std()
        points = torch.cat([context.data, 0.5 * context.data, 0.5 * context.data + 0.1 * noise, 0.9 * context.data])
    search = lambda calls: PairSearch(context, bare, calls, inside).run(points)  # noqa: E731
    _attack_domain(context, "without_normalizers", places, search)


def _attack_jacobian(context: AttackContext) -> None:
    """Test the norm of the Jacobian that the result claims against the whole Jacobian at each data point."""
    value = context.result.end_to_end.get("jacobian")
    if value is None or value.domain != "these data points":
        return
    if not context.covers_all_inputs:
        context.skip("end_to_end[].jacobian", "the analysis also lets positions move, which are kept fixed here")
        return
    truth = _dense_at(context.hooked, context.data) if len(context.data) == context.batch.batch else None
    if truth is None:
        context.skip("end_to_end[].jacobian", "the whole Jacobian is too large, or not finite")
    elif context.noise < 1e-10:
        context.compare("end_to_end", "", "jacobian", value, log_of(truth) + 1e-9, "whole Jacobian")


def _dense_at(hooked: HookedModel, data: Tensor) -> float | None:
    """Return the largest norm of the whole Jacobian over some points, or ``None`` if it is too large or not finite."""
    with torch.no_grad():
        if hooked(data[:1]).output.numel() > ROWS:
            return None
    norms = [float(dense_norms(lambda x: hooked(x).output, row[None])) for row in data]
    return None if any(map(math.isnan, norms)) else max(norms)


def _attack_stacked(context: AttackContext) -> None:
    """Test the bound on a stacked batch, BatchNorm using its statistics, against batches in its domain."""
    value, size = context.result.end_to_end["stacked_batch"], min(16, context.batch.batch)
    if value is None:
        return
    hooked = stacked_model(context, size, batch_statistics=True)
    batch = hooked.point()[None]
    trace = hooked(batch)
    batch_norms = [c for c in trace.order if isinstance(hooked.modules[c[0]], torch.nn.modules.batchnorm._BatchNorm)]
    least = {c: _channel_stds(trace.before[c]) for c in batch_norms}
    rest = [r for r in context.result.normalizers if r.kind != "batch_norm" and not row_of_weights(r)]
    if rest or not least:
        context.skip("end_to_end[].stacked_batch", "the model also has other normalizers, or BatchNorm is not a module")
        return

    def inside(x: Tensor) -> Tensor:
        with torch.no_grad():
            traces = [hooked(row[None]) for row in x]
        return torch.tensor(
            [all(bool((_channel_stds(t.before[c]) >= s).all()) for c, s in least.items()) for t in traces]
        )

    noise = context.random(*batch.shape) * batch.std()
    points = torch.cat(
        [batch, *(batch * s for s in (1.001, 1.1, 2.0)), *(s * (batch + 0.1 * noise) for s in (1.2, 3.0))]
    )
    search = PairSearch(context, hooked, [None], inside)
    points = points[inside(points)]
    if len(points):
        search.try_singular_directions(None, points)
        search.try_pairs(points, points.roll(1, 0))
    found = search.best_pairs()
    if None in found:
        context.compare("end_to_end", "", "stacked_batch", value, found[None], "pair of batches")
    truth = _dense_at(hooked, batch)
    low = context.result.end_to_end.get("stacked_batch_lower")
    if truth is not None and truth > 0:
        how = "whole Jacobian at the batch"
        context.compare("end_to_end", "", "stacked_batch", value, math.log(truth) - 1e-9, how)
        if context.covers_all_inputs:
            context.compare("end_to_end", "", "stacked_batch_lower", low, math.log(truth) + 1e-9, how)


def _channel_stds(x: Tensor) -> Tensor:
    return x.detach().transpose(0, 1).flatten(1).std(1, correction=0)
