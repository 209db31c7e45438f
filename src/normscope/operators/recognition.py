"""Find the normalizer that ends at a node: by its own pattern, or as a division by the spread of its own input."""

import math

import torch
from torch import Tensor

from normscope.graph.ir import Node
from normscope.graph.recognise import Match
from normscope.operators.expression import Expr
from normscope.operators.normalization import Spread, normalizer
from normscope.operators.normalizer import normalizers
from normscope.operators.quadratic_form import QuadraticForm, RootQuotient, find_root_quotient
from normscope.operators.written_out import PartOfGraph, Place, Surroundings, Written, agrees, probe


def find_normalizer(place: Place) -> Written | None:
    """Return the normalizer of activations that ends at a place, or ``None``; numbers decide, not looks alone."""
    match = place.around.recogniser.match(place.node)
    found = None if match is None else _division(place, match)
    if found is not None:
        return found
    quotient = find_root_quotient(place.node, place.around)
    source = None if quotient is None else place.source(quotient.source)
    if quotient is not None and source is not None:
        return _over_root(place, quotient, source)
    patterns = (n.written_out(place) for n in normalizers().values() if n.written_out is not None)
    return next((found for found in patterns if found is not None), None)


def _over_root(place: Place, quotient: RootQuotient, source: Expr) -> Written | None:
    """Return a tensor over a root of its own form as the normalizer that it fits, or as a division by a spread."""
    form, centered = quotient.form, quotient.centered
    for found in (n.fits(place, quotient, source) for n in normalizers().values() if n.fits is not None):
        if found is not None:
            return found
    if not (form.is_variance if centered else form.is_square):
        return None
    if form.least and form.least_eps:
        return None
    eps, where = (math.sqrt(form.least), "max") if form.least else (form.least_eps, "inside")
    spread = Spread(source.shape, form.axes, eps, centered, _factor(form), where)
    root_of = "sum" if not centered and spread.factor == float(form.size) else "mean"
    match = Match(quotient.source, form.axes, eps, centered, root_of=root_of)
    return _written(place, match, spread, source, quotient.gain, quotient.shift)


def _factor(form: QuadraticForm) -> float:
    """Return the factor of the mean square or variance, exact where it is a usual one, else rounded down."""
    factor = form.squares * form.size
    for usual in (1.0, form.size / (form.size - 1), float(form.size)):
        if abs(factor - usual) <= 1e-9 * usual:
            return usual
    return factor * (1 - 1e-9)


def _division(place: Place, match: Match) -> Written | None:
    """Return a division by a spread as the normalizer that claims it."""
    source = place.source(match.source)
    if source is None:
        return None
    n = math.prod(source.shape[a] for a in match.axes)
    factor = match.scale * (n / max(n - match.correction, 1e-300) if match.root_of == "mean" else float(n))
    spread = Spread(source.shape, match.axes, match.eps, match.centered, factor, match.where)
    gain = torch.ones((), dtype=torch.float64)
    for one in match.factors:
        gain = gain * (place.around.constant(one).double() if isinstance(one, str) else one)
    if not divides_by_spread(spread, place.around.run(place.node, match.source), gain):
        return None
    return _written(place, match, spread, source, gain, torch.zeros(()))


def divides_by_spread(spread: Spread, part: PartOfGraph, gain: Tensor | float = 1.0) -> bool:
    """Return whether a part of a graph normalizes by a spread, stabilizer included, from its values at random points.

    The points have entries about one, about the size at which the stabilizer takes over, and far from zero mean.
    """
    eps = math.sqrt(spread.eps) if spread.where == "inside" else spread.eps
    small = eps / math.sqrt(spread.factor) or 1.0
    points = (probe(spread.view, 0), probe(spread.view, 1, small), probe(spread.view, 2, shift=3.0))
    return agrees(part, lambda x: gain * spread.normalize(x), points)


def _written(place: Place, match: Match, spread: Spread, source: Expr, gain: Tensor, shift: Tensor) -> Written:
    """Return a division by a spread, with the gain and shift that belong to it, as the kind that claims it."""
    kind = kind_of_division(match, spread)
    own = gain if bool((gain != 1).any()) else None
    moved = shift if bool((shift != 0).any()) else None
    result = lambda: normalizer(place.call, source, spread, kind, own, moved)  # noqa: E731
    return place.written(kind, source, match.source, result, gain=own, spread=spread, eps=match.eps)


def kind_of_division(match: Match, spread: Spread) -> str:
    """Return the kind that a division by a spread is, the special ones before those that take any axes."""
    claims = [n for n in normalizers().values() if n.claims is not None and n.claims(match, spread)]
    return min(claims, key=lambda n: (n.takes_any_axes, n.kind)).kind


def weight_normalizer(node: Node, around: Surroundings) -> str | None:
    """Return the kind of normalizer of weights that ends at a node made of parameters, or ``None``."""
    for kind, found in normalizers().items():
        if found.of_weight is not None and found.of_weight(node, around):
            return kind
    return None
