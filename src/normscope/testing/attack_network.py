"""Attack the end-to-end constants and the curves along depth, on each of their domains."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from normscope.core.value import Value, log_of
from normscope.operators.normalizer import row_of_weights
from normscope.testing.attack_rows import is_affine, sample_shape
from normscope.testing.hooked_model import Call, HookedModel
from normscope.testing.pairs import (
    Pair,
    along,
    ascended,
    dense_norms,
    everywhere,
    most_stretched,
    quotients,
    unit,
    without_rounding,
)
from normscope.testing.scene import Groups, Scene, find_calls, groups_of, only_normalizes, stacked_model

#: Pairs kept at each place; points at which directions are looked for; places from which ascent starts.
KEPT, POINTS, CLIMBED = 3, 4, 6
#: Outputs up to which a Jacobian is formed whole.
ROWS = 512
Inside = Callable[[Tensor], Tensor]
#: What finds the best pair at each of some places.
Search = Callable[[Sequence[Call | None]], dict[Call | None, Pair]]


@dataclass(eq=False)
class Hunt:
    """A search for pairs that are driven apart, at all places of a model at once."""

    scene: Scene  #: what all attacks share
    hooked: HookedModel  #: the model that is run
    calls: Sequence[Call | None]  #: the places; ``None`` is the output
    inside: Inside | None = None  #: tells which points lie in the domain
    kept: dict[Call | None, list[tuple[float, Tensor, Tensor]]] = field(default_factory=dict)

    def rows(self, x: Tensor, calls: Sequence[Call | None] | None = None) -> dict[Call | None, Tensor]:
        """Return the tensors at places."""
        return self.scene.rows(x, self.calls if calls is None else calls, self.hooked)

    def offer(self, a: Tensor, b: Tensor) -> None:
        """Try pairs at every place and keep the best."""
        if self.inside is not None:
            keep = self.inside(a) & self.inside(b)
            a, b = a[keep], b[keep]
        if not len(a):
            return
        with torch.no_grad():
            left, right = self.rows(a), self.rows(b)
        for call in self.calls:
            found = quotients((left[call], right[call]), a, b, self.scene.noise)
            top = found.argsort(descending=True)[:KEPT]
            best = self.kept.setdefault(call, [])
            best += [(float(found[i]), a[i], b[i]) for i in top if float(found[i]) > 0]
            best.sort(key=lambda item: -item[0])
            del best[KEPT:]

    def run(self, points: Tensor) -> dict[Call | None, Pair]:
        """Search from some points and return the best pair of each place, rounding taken off."""
        generator = self.scene.generator
        if self.inside is not None:
            points = points[self.inside(points)]
        if not len(points):
            return {}
        if not self.scene.independent:  # one run for each point: fewer of them
            points = points[:: max(1, len(points) // 8)]
        for _ in range(2):
            self.offer(*along(points, unit(self.scene.random(*points.shape))))
        self.offer(points, points.roll(1, 0))
        for normalizer in self.quiet_calls():
            still = self.quietest(normalizer, points[:3])
            self.follow(normalizer, still)
        for call in self.calls:
            self.follow(call, self.starts(call, points))
        effort = self.scene.effort
        step = max(1, len(self.calls) // CLIMBED)
        chosen = [*self.calls[::step], None] if None in self.calls else list(self.calls[::step])
        for call in dict.fromkeys(chosen):
            x = self.starts(call, points)[:3]
            flat = lambda z, call=call: self.rows(z, [call])[call]  # noqa: E731
            a, b = ascended(flat, x, generator, int(20 * effort))
            self.edge(x, a)
            self.offer(a, b)
            self.follow(call, self.starts(call, points))
        return self.settled()

    def quiet_calls(self) -> list[Call]:
        """Return some places that are normalizers, before which a small spread is looked for."""
        named = [c for c in self.calls if c is not None and "norm" in type(self.hooked.modules[c[0]]).__name__.lower()]
        return named[:: max(1, len(named) // CLIMBED)] if self.inside is None and self.scene.independent else []

    def quietest(self, call: Call, x: Tensor) -> Tensor:
        """Return points at which what goes into a normalizer hardly varies: there it is steepest."""
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

    def starts(self, call: Call | None, points: Tensor) -> Tensor:
        """Return the ends of the best pairs at a place, and some points."""
        best = [a for _, a, _ in self.kept.get(call, [])]
        return torch.stack([*best, *points[: POINTS - min(len(best), POINTS - 1)]])

    def follow(self, call: Call | None, x: Tensor) -> None:
        """Try the directions that the Jacobian at a place stretches most."""
        leaf = x.detach().clone().requires_grad_(True)
        with torch.enable_grad():
            y = self.rows(leaf, [call])[call]
        _, direction = most_stretched(y, leaf, 10, self.scene.generator)
        self.offer(*along(x, direction))

    def edge(self, start: Tensor, end: Tensor) -> None:
        """Try points on the way from some points to others, up to the edge of the domain."""
        if self.inside is None:
            return
        between = torch.cat([start + t * (end - start) for t in (0.02, 0.05, 0.1, 0.2, 0.4, 0.7)])
        self.offer(*along(between, unit(self.scene.random(*between.shape))))

    def settled(self) -> dict[Call | None, Pair]:
        """Return the best pair at each place, rounding taken off."""
        found: dict[Call | None, Pair] = {}
        for call, best in self.kept.items():
            if not best:
                continue
            a, b = torch.stack([p[1] for p in best]), torch.stack([p[2] for p in best])
            flat = lambda z, call=call: self.rows(z, [call])[call]  # noqa: E731
            sure = without_rounding(flat, a, b, self.scene.noise, self.scene.generator)
            k = int(sure.argmax())
            found[call] = Pair(log_of(float(sure[k])), a[k], b[k])
        return found


def depth_places(scene: Scene) -> dict[str, tuple[int, Call]]:
    """Return the place in the depth curves, and the call, of every layer and normalizer that is a module."""
    depth = scene.result.depth
    rows = {"layer": [r.name for r in scene.result.layers], "normalizer": [r.name for r in scene.result.normalizers]}
    found: dict[str, tuple[int, Call]] = {}
    for kind, names in rows.items():
        calls = find_calls(names, scene.hooked, scene.trace)
        for i, (name, what) in enumerate(zip(depth.names, depth.kinds, strict=True)):
            if what != kind:
                continue
            call = calls.get(name, "no row of that name")
            if isinstance(call, str):
                scene.skip(f"depth[{name}]", call)
            elif kind == "normalizer" and not only_normalizes(scene, call):
                scene.skip(f"depth[{name}]", f"{scene.hooked.class_name(call)} may do more than normalize")
            elif kind == "layer" and not is_affine(scene.hooked.function(call), sample_shape(scene, call)):
                scene.skip(f"depth[{name}]", f"{scene.hooked.class_name(call)} does more than a linear map")
            else:
                found[f"{i} {name}"] = (i, call)
    return found


def attack_network(scene: Scene) -> None:
    """Hold totals and depth curves against pairs of inputs, on all inputs, on the variance floor, and on batches."""
    places = depth_places(scene)
    constants = scene.result.end_to_end
    _consistent(scene)
    points = everywhere(scene.data, scene.hooked.shapes, scene.generator)
    scene.say("attacking the bounds on all inputs")
    scene.attempt(
        "global", _attack_domain, "global", places, lambda calls: Hunt(scene, scene.hooked, calls).run(points)
    )
    if constants.get("variance_floor") is not None:
        scene.say("attacking the bounds on the variance floor")
        scene.attempt("variance_floor", _attack_floor, places)
    if constants.get("without_normalizers") is not None:
        scene.say("attacking the bounds without normalizers")
        scene.attempt("without_normalizers", _attack_without, places, points)
    scene.attempt("jacobian", _attack_jacobian)
    if constants.get("stacked_batch") is not None:
        scene.say("attacking the bounds on a stacked batch")
        scene.attempt("stacked_batch", _attack_stacked)


def _consistent(scene: Scene) -> None:
    """Hold what is attained according to the result against its own upper bounds."""
    values = scene.result.end_to_end
    for upper, lower in (
        ("global", "lower_everywhere"),
        ("global_composition", "lower_everywhere"),
        ("variance_floor", "lower"),
        ("stacked_batch", "stacked_batch_lower"),
    ):
        attained = values.get(lower)
        if attained is not None:
            scene.hold("end_to_end", "", upper, values.get(upper), attained.log, f"the result's own {lower}")
    curves = scene.result.depth.curves
    if "lower" in curves and "global" in curves:
        depth = scene.result.depth
        for i, name in enumerate(depth.names):
            low = depth.value("lower", i)
            if low is not None:
                scene.hold("depth", name, "global", depth.value("global", i), low.log, "the result's own lower curve")


def _attack_domain(
    scene: Scene, key: str, places: dict[str, tuple[int, Call]], search: Search, how: str = "pair"
) -> None:
    """Hold the total and the curve of one domain against the pairs that a search finds there."""
    curve = scene.result.depth.curves.get(key)
    wanted: list[tuple[str, str, Value | None, Call | None]] = [("end_to_end", "", scene.result.end_to_end[key], None)]
    for label, (i, call) in places.items():
        value = None if curve is None else scene.result.depth.value(key, i)
        wanted.append(("depth", label.partition(" ")[2], value, call))
    wanted = [w for w in wanted if w[2] is not None and w[2].log < math.inf]
    if not wanted:
        return
    found = search(list(dict.fromkeys(w[3] for w in wanted)))
    for table, name, value, place in wanted:
        if place in found:
            scene.hold(table, name, key, value, found[place], how)
        else:
            scene.skip(f"{table}[{name}].{key}", "no pair of points was found in the domain")


def _floors(scene: Scene) -> dict[Call, Groups] | None:
    """Return the groups and floors of every normalizer that takes statistics of its input, or ``None``."""
    rows = [r for r in scene.result.normalizers if not row_of_weights(r)]
    calls = find_calls([r.name for r in rows], scene.hooked, scene.trace)
    found: dict[Call, Groups] = {}
    for row in rows:
        if row.floor is None and row.on_floor is None:
            continue
        call = calls[row.name]
        if isinstance(call, str):
            return None
        apply = scene.hooked.function(call)
        groups = groups_of(row, scene.hooked.modules[call[0]], scene.trace.before[call].detach(), apply)
        if groups is None:
            return None
        found[call] = groups
    return found


def _attack_floor(scene: Scene, places: dict[str, tuple[int, Call]]) -> None:
    """Hold the numbers on the variance floor against data, and against what lies in the domain around it."""
    value = scene.result.end_to_end["variance_floor"]
    floors = _floors(scene)
    ranged = value is not None and "range" in value.domain
    data = scene.data
    if floors is None:  # only the data itself is known to lie inside

        def pairs_of_the_data(calls: Sequence[Call | None]) -> dict[Call | None, Pair]:
            hunt = Hunt(scene, scene.hooked, calls)
            hunt.offer(data.repeat(len(data), 1), data.repeat_interleave(len(data), 0))
            return hunt.settled()

        _attack_domain(scene, "variance_floor", places, pairs_of_the_data, "pair of the data")
        return

    def inside(x: Tensor) -> Tensor:
        ok = torch.ones(len(x), dtype=torch.bool)
        if ranged:
            ok &= _in_range(x, data, scene.hooked.shapes)
        if floors and bool(ok.any()):
            with torch.no_grad():
                for i in range(len(x)) if not scene.independent else [slice(None)]:
                    part = x[i] if isinstance(i, slice) else x[i][None]
                    trace = scene.hooked(part)
                    for call, groups in floors.items():
                        ok[i] &= groups.inside(trace.before[call], len(part)).reshape(ok[i].shape)
        return ok

    noise = scene.random(*data.shape) * data.std()
    mixed = [0.5 * (data + data.roll(1, 0)), *(data * s for s in (0.5, 0.9, 0.99, 1.01, 1.5, 10.0))]
    points = torch.cat([data, *(data + s * noise for s in (0.01, 0.1, 1.0)), *mixed])
    search = lambda calls: Hunt(scene, scene.hooked, calls, inside).run(points)  # noqa: E731
    _attack_domain(scene, "variance_floor", places, search)


def _in_range(x: Tensor, data: Tensor, shapes: Sequence[tuple[int, ...]]) -> Tensor:
    """Tell which points lie within the range and the norms of the data, tensor by tensor."""
    ok = torch.ones(len(x), dtype=torch.bool)
    sizes = [math.prod(s) for s in shapes]
    for part, seen, shape in zip(torch.split(x, sizes, 1), torch.split(data, sizes, 1), shapes, strict=True):
        rows, known = (t.reshape(len(t), -1, shape[-1] if shape else 1).norm(dim=2) for t in (part, seen))
        ok &= (part >= seen.min()).all(1) & (part <= seen.max()).all(1)
        ok &= (part.norm(dim=1) <= seen.norm(dim=1).max()) & (rows <= known.max()).all(1)
    return ok


def _attack_without(scene: Scene, places: dict[str, tuple[int, Call]], points: Tensor) -> None:
    """Hold the bound without normalizers against the model with every normalizer module made the identity."""
    value = scene.result.end_to_end["without_normalizers"]
    rows = [r.name for r in scene.result.normalizers if not row_of_weights(r)]
    calls = find_calls(rows, scene.hooked, scene.trace)
    if value is None or any(isinstance(c, str) for c in calls.values()):
        scene.skip("without_normalizers", "some normalizer is not a module")
        return
    if any(r.details.get("written_out") for r in scene.result.normalizers):
        scene.skip("without_normalizers", "a normalizer written by hand keeps its scale, which is not a module")
        return
    bare = HookedModel(scene.model, scene.hooked.inputs, [])
    bare.shapes, bare.looked_up, bare.stacked = scene.hooked.shapes, scene.hooked.looked_up, scene.hooked.stacked
    bare.identities = {call[0] for call in calls.values() if not isinstance(call, str)}
    inside = None
    if "range" in value.domain:
        inside = lambda x: _in_range(x, scene.data, scene.hooked.shapes)  # noqa: E731
        noise = scene.random(*scene.data.shape) * scene.data.std()
        points = torch.cat([scene.data, 0.5 * scene.data, 0.5 * scene.data + 0.1 * noise, 0.9 * scene.data])
    search = lambda calls: Hunt(scene, bare, calls, inside).run(points)  # noqa: E731
    _attack_domain(scene, "without_normalizers", places, search)


def _attack_jacobian(scene: Scene) -> None:
    """Hold what the result says is attained at the data against the whole Jacobian at each data point."""
    value = scene.result.end_to_end.get("jacobian")
    if value is None or value.domain != "these data points":
        return
    if not scene.whole:
        scene.skip("end_to_end[].jacobian", "the analysis also lets positions move, which are kept fixed here")
        return
    truth = _dense_at(scene.hooked, scene.data) if len(scene.data) == scene.batch.batch else None
    if truth is None:
        scene.skip("end_to_end[].jacobian", "the whole Jacobian is too large, or not finite")
    elif scene.noise < 1e-10:
        scene.hold("end_to_end", "", "jacobian", value, log_of(truth) + 1e-9, "whole Jacobian")


def _dense_at(hooked: HookedModel, data: Tensor) -> float | None:
    """Return the largest norm of the whole Jacobian over some points, or ``None`` if it is too large or not finite."""
    best = 0.0
    for row in data:
        leaf = row[None].clone().requires_grad_(True)
        with torch.enable_grad():
            y = hooked(leaf).output
        if y.numel() > ROWS:
            return None
        norm = float(dense_norms(y, leaf)[0])
        if math.isnan(norm):
            return None
        best = max(best, norm)
    return best


def _attack_stacked(scene: Scene) -> None:
    """Hold the bound on a stacked batch, BatchNorm using its statistics, against batches in its domain."""
    value, size = scene.result.end_to_end["stacked_batch"], min(16, scene.batch.batch)
    if value is None:
        return
    hooked = stacked_model(scene, size, batch_statistics=True)
    batch = hooked.point()[None]
    trace = hooked(batch)
    batch_norms = [c for c in trace.order if isinstance(hooked.modules[c[0]], torch.nn.modules.batchnorm._BatchNorm)]
    least = {c: _channel_stds(trace.before[c]) for c in batch_norms}
    rest = [r for r in scene.result.normalizers if r.kind != "batch_norm" and not row_of_weights(r)]
    if rest or not least:
        scene.skip("end_to_end[].stacked_batch", "the model also has other normalizers, or BatchNorm is not a module")
        return

    def inside(x: Tensor) -> Tensor:
        with torch.no_grad():
            traces = [hooked(row[None]) for row in x]
        return torch.tensor(
            [all(bool((_channel_stds(t.before[c]) >= s).all()) for c, s in least.items()) for t in traces]
        )

    noise = scene.random(*batch.shape) * batch.std()
    points = torch.cat(
        [batch, *(batch * s for s in (1.001, 1.1, 2.0)), *(s * (batch + 0.1 * noise) for s in (1.2, 3.0))]
    )
    hunt = Hunt(scene, hooked, [None], inside)
    points = points[inside(points)]
    if len(points):
        hunt.follow(None, points)
        hunt.offer(points, points.roll(1, 0))
    found = hunt.settled()
    if None in found:
        scene.hold("end_to_end", "", "stacked_batch", value, found[None], "pair of batches")
    truth = _dense_at(hooked, batch)
    low = scene.result.end_to_end.get("stacked_batch_lower")
    if truth is not None and truth > 0:
        how = "whole Jacobian at the batch"
        scene.hold("end_to_end", "", "stacked_batch", value, math.log(truth) - 1e-9, how)
        if scene.whole:
            scene.hold("end_to_end", "", "stacked_batch_lower", low, math.log(truth) + 1e-9, how)


def _channel_stds(x: Tensor) -> Tensor:
    """Return the standard deviation of each channel over a batch."""
    return x.detach().transpose(0, 1).flatten(1).std(1, correction=0)
