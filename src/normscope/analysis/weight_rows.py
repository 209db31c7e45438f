"""One row for each weight: the results as values with their guarantees."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from normscope.analysis.context import Work
from normscope.analysis.weight_stack import Stacked
from normscope.core.value import Kind, Value, log_sum
from normscope.lipschitz.composition import Domain
from normscope.lipschitz.weights.bounds import Outputs, weight_constant
from normscope.lipschitz.weights.invariance import scale_free
from normscope.lipschitz.weights.pointwise import Norms
from normscope.lipschitz.weights.result import WeightRow
from normscope.lipschitz.weights.samples import Sample
from normscope.lipschitz.weights.theorem_12 import is_plain_chain, theorem_12, unnormalized_product
from normscope.lipschitz.weights.uses import Weights
from normscope.operators.nonlinear import INF
from normscope.operators.normalizer import acts_on_weights, couples_samples, site_constants
from normscope.operators.site import Site

#: How a bound over data takes the activations.
MEASURED = "activations at the data are evaluated in float64, with a margin for rounding in the last bits"
EXACT = "exact real arithmetic"
_FLOOR = "normalizer stds stay above those seen in the data"


@dataclass(eq=False)
class Found:
    """What the steps found, in the order of the weights and their uses."""

    weights: Weights  #: the weights and their uses
    work: Work  #: what the analysis shares
    domains: dict[str, Domain] = field(default_factory=dict)  #: the domains spoken about
    #: constants with respect to the results of uses, by domain
    outputs: dict[str, Outputs] = field(default_factory=dict)
    #: uses whose constant on the variance floor also needs inputs in the range of the data
    ranged: set[int] = field(default_factory=set)
    ranged_weights: set[int] = field(default_factory=set)  #: weights of which the same holds for changes of any size
    samples: list[Sample] = field(default_factory=list)  #: what the uses met at each sample
    factors: list[list[float]] = field(default_factory=list)  #: logarithms of the input factors at each sample
    norms: list[Norms] = field(default_factory=list)  #: exact norms at the points differentiated

    @property
    def mode(self) -> str | None:
        """Return what BatchNorm does, if there is one."""
        sites = self.weights.program.sites
        return self.work.options.mode if any(couples_samples(s.kind) for s in sites) else None


def rows(found: Found, batch: Stacked | None) -> list[WeightRow]:
    """Return a row for each weight."""
    printed = _Printed(found)
    return [_row(found, leaf, batch, printed) for leaf in range(len(found.weights.leaves))]


def _row(found: Found, leaf: int, batch: Stacked | None, printed: _Printed) -> WeightRow:
    """Return the row of one weight."""
    weights = found.weights
    uses = weights.of(leaf)
    item = weights.leaves[leaf]
    constants = _constants(found, leaf, uses)
    attained = _attained(found, [n.weights[leaf] for n in found.norms])
    one = weights.uses[uses[0]] if len(uses) == 1 else None
    site = None if one is None else scale_free(found.work.captured.graph, weights.program, one, training=True)
    theorem = None if one is None else printed.theorem(uses[0])
    best = min(constants.values(), key=lambda v: v.log, default=None)
    return WeightRow(
        name=item.name,
        shape=item.shape,
        uses=len(uses),
        operation=", ".join(dict.fromkeys(weights.uses[i].kind for i in uses)),
        effective=item.effective,
        outputs=_outputs(found, leaf, uses),
        input_norm=_input_norm(found, uses),
        constants=constants,
        attained=attained,
        attained_output=_attained(found, [v for n in found.norms if (v := n.outputs[leaf]) is not None]),
        stacked={} if batch is None else batch.values(item.name),
        printed=theorem,
        printed_is_bound=_decided(theorem, best, attained),
        unnormalized=None if one is None else printed.unnormalized(uses[0]),
        scale_free=None if site is None else (site.owner or site.node),
        notes=tuple(_notes(found, leaf, uses, site)),
    )


def _decided(printed: Value | None, best: Value | None, attained: Value | None) -> bool | None:
    """Return whether the printed number is a bound: at least a proved one, or below an attained one, or undecided."""
    if printed is None:
        return None
    if best is not None and printed.log >= best.log - 1e-9:  # what is proved has room for rounding in it
        return True
    return False if attained is not None and printed.log < attained.log else None


def _conditions(found: Found, key: str, leaf: int, *, small: bool, data: bool) -> str:
    """Return the domain of a constant in words."""
    floors = key == "variance_floor" and bool(found.domains[key].floors)
    needed = any(i in found.ranged for i in found.weights.of(leaf)) if small else leaf in found.ranged_weights
    ranged = key == "variance_floor" and needed
    if data:
        weight = "at these weights" if small else "all values of this weight"
        return f"these data points, {weight}" + (f" for which {_FLOOR}" if floors and not small else "")
    whole = found.domains[key].name
    conditions = [f"whose {_FLOOR}"] * floors + ["within the data's range and norms"] * ranged
    inputs = f"{'inputs' if whole == 'all inputs' else whole} {' and '.join(conditions)}" if conditions else whole
    return f"{inputs}, at these weights" if small else inputs


def _both(key: str, small: float, whole: float | None) -> Iterable[tuple[str, float, bool]]:
    """Yield what is worth reporting of a pair: name, logarithm, and whether it speaks of small changes only."""
    if whole is not None:
        yield key, whole, False
    if whole is None or small < whole - 1e-9:
        yield f"{key}_small", small, True


def _outputs(found: Found, leaf: int, uses: Sequence[int]) -> dict[str, Value]:
    """Return ``||h, y||`` on every domain, y the stacked results of the uses."""
    out = {}
    for key, outputs in found.outputs.items():
        whole = outputs.any_size[leaf]
        stacked = log_sum((2 * outputs.small[i] for i in uses), INF) / 2
        any_size = None if whole is None else log_sum((2 * x for x in whole), INF) / 2
        for name, log, small in _both(key, stacked, any_size):
            domain = _conditions(found, key, leaf, small=small, data=False)
            out[name] = Value(log, Kind.CERTIFIED, domain, found.mode, "normscope F13", (EXACT,))
    return out


def _constants(found: Found, leaf: int, uses: Sequence[int]) -> dict[str, Value]:
    """Return ``||h, W||`` over the data on every domain."""
    out: dict[str, Value] = {}
    if not found.samples:
        return out
    for key, outputs in found.outputs.items():
        logs, whole = [outputs.small[i] for i in uses], outputs.any_size[leaf]
        factors = [[sample[i] for i in uses] for sample in found.factors]
        small = max(weight_constant(logs, f) for f in factors)
        large = None if whole is None else max(weight_constant(whole, f) for f in factors)
        for name, log, is_small in _both(key, small, large):
            domain = _conditions(found, key, leaf, small=is_small, data=True)
            out[name] = Value(log, Kind.CERTIFIED, domain, found.mode, "normscope Proposition W-3", (EXACT, MEASURED))
    return out


def _input_norm(found: Found, uses: Sequence[int]) -> Value | None:
    """Return the largest norm of ``dW -> (y_u)`` over the data."""
    if not found.samples:
        return None
    log = max(log_sum((2 * sample[i] for i in uses), INF) / 2 for sample in found.factors)
    return Value(log, Kind.CERTIFIED, "these data points", None, "normscope Proposition W-2", (MEASURED,))


def _attained(found: Found, values: Sequence[float]) -> Value | None:
    """Return the largest exact norm."""
    if not values:
        return None
    return Value.of(max(values), Kind.LOWER, domain="these data points", mode=found.mode, statement="normscope F13")


class _Printed:
    """What the paper prints, with the parts all weights share."""

    def __init__(self, found: Found) -> None:
        program, work = found.weights.program, found.work
        self.found = found
        self.layers = [
            (e.id, Value(work.norms.norm(e.inputs[0], e).log_upper, Kind.CERTIFIED, statement="normscope norm"))
            for e in (program.layers if found.samples else ())
        ]
        self.normalizers: list[tuple[int, Value]] = []
        for site in program.sites if found.samples else ():
            if acts_on_weights(site) or site.node not in program.ends:
                continue
            seen = None if work.seen is None else work.seen.before_normalizers.get(site.node)
            known = site_constants(site, None if seen is None else seen.floor, work.options.mode)
            self.normalizers.append((program.ends[site.node][0].id, known.printed or known.on_floor or known.proved))
        self.plain = bool(found.samples) and is_plain_chain(program)

    def theorem(self, index: int) -> Value | None:
        """Return Theorem 12 for one use of a matrix or kernel."""
        use = self.found.weights.uses[index]
        sizes = [s.met[index].activation for s in self.found.samples if index in s.met]
        known = [size for size in sizes if size is not None]
        if use.place is None or not known:
            return None
        start = use.place.id
        activation = Value.of(max(known), Kind.ESTIMATE, domain="these data points")
        after = [norm for key, norm in self.layers if key > start]
        return theorem_12(activation, after, [v for key, v in self.normalizers if key >= start])

    def unnormalized(self, index: int) -> Value | None:
        """Return the product of all other norms for a layer of a plain chain."""
        use = self.found.weights.uses[index]
        if not self.plain or use.place is None or use.kind not in ("matrix", "convolution"):
            return None
        keys = [key for key, _ in self.layers if key <= use.place.id]
        largest = max(s.input_norm for s in self.found.samples)
        size = Value.of(largest, Kind.CERTIFIED, domain="these data points", assumptions=(EXACT,))
        if use.kind == "convolution" or not keys:
            return None  # the norm of a kernel as a matrix is another one
        return unnormalized_product([norm for _, norm in self.layers], len(keys) - 1, size)


def _notes(found: Found, leaf: int, uses: Sequence[int], site: Site | None) -> Iterable[str]:
    """Return what a reader must know of one weight."""
    weights = found.weights
    yield from dict.fromkeys(weights.uses[i].reason for i in uses if weights.uses[i].reason)
    if weights.leaves[leaf].effective:
        yield "effective weight: constants are with respect to the result of the parametrization"
    if site is not None:
        mode = "" if site.spread is not None else " in training"
        kept = "only eps keeps a bound over all its values finite"
        end = kept if site.eps > 0 else "no bound holds for all its values"
        yield f"scale-invariant{mode}: at c W the derivative is 1/c times that at W, so {end}"
    shared = len(uses) > 1 and all(o.any_size[leaf] is None for o in found.outputs.values())
    if shared and not any(weights.uses[i].reason for i in uses):
        yield "used where it changes what it acts on, or in a constant: constants are for small changes"
    if any(math.isinf(log) for o in found.outputs.values() for log in (o.small[i] for i in uses)):
        yield "no finite constant through some operation: see the messages of analyze"
