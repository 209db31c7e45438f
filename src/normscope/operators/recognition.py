"""Recognize normalizers that are written out: by their own patterns, or as a division by the spread of the input.

Normalizers of weights are recognized by filters divided by their own spread or length, however that is written.
"""

import math

import torch
from torch import Tensor

from normscope.graph.ir import Node
from normscope.graph.recognise import Match, name_of
from normscope.operators.expression import Expr
from normscope.operators.normalizer import normalizers
from normscope.operators.quadratic_form import QuadraticForm, RootQuotient, find_root_quotient
from normscope.operators.spread_division import Spread, normalizer
from normscope.operators.written_out import NormalizerCandidate, PartOfGraph, Surroundings, WrittenOut, agrees, probe


def find_normalizer(candidate: NormalizerCandidate) -> WrittenOut | None:
    """Return the normalizer of activations that ends at a candidate, or ``None``, verified by its values."""
    match = candidate.around.recogniser.match(candidate.node)
    found = None if match is None else _division(candidate, match)
    if found is not None:
        return found
    quotient = find_root_quotient(candidate.node, candidate.around)
    source = None if quotient is None else candidate.source(quotient.source)
    if quotient is not None and source is not None:
        return _over_root(candidate, quotient, source)
    patterns = (n.written_out(candidate) for n in normalizers().values() if n.written_out is not None)
    return next((found for found in patterns if found is not None), None)


def _over_root(candidate: NormalizerCandidate, quotient: RootQuotient, source: Expr) -> WrittenOut | None:
    """Return a tensor over a root of its own form as the normalizer that it fits, or as a division by a spread."""
    form, centered = quotient.form, quotient.centered
    for found in (n.fits(candidate, quotient, source) for n in normalizers().values() if n.fits is not None):
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
    return _written(candidate, match, spread, source, quotient.gain, quotient.shift)


def _factor(form: QuadraticForm) -> float:
    """Return the factor of the mean square or variance, exact where it is a usual one, else rounded down."""
    factor = form.squares * form.size
    for usual in (1.0, form.size / (form.size - 1), float(form.size)):
        if abs(factor - usual) <= 1e-9 * usual:
            return usual
    return factor * (1 - 1e-9)


def _division(candidate: NormalizerCandidate, match: Match) -> WrittenOut | None:
    """Return a division by a spread as the normalizer that claims it."""
    source = candidate.source(match.source)
    if source is None:
        return None
    n = math.prod(source.shape[a] for a in match.axes)
    factor = match.scale * (n / max(n - match.correction, 1e-300) if match.root_of == "mean" else float(n))
    spread = Spread(source.shape, match.axes, match.eps, match.centered, factor, match.where)
    gain = torch.ones((), dtype=torch.float64)
    for one in match.factors:
        gain = gain * (candidate.around.constant(one).double() if isinstance(one, str) else one)
    if not divides_by_spread(spread, candidate.around.run(candidate.node, match.source), gain):
        return None
    return _written(candidate, match, spread, source, gain, torch.zeros(()))


def divides_by_spread(spread: Spread, part: PartOfGraph, gain: Tensor | float = 1.0) -> bool:
    """Return whether a part of a graph normalizes by a spread, stabilizer included, from its values at random points.

    The points have entries of about one, of about the size at which the stabilizer dominates, and with a mean far from
    zero.
    """
    eps = math.sqrt(spread.eps) if spread.where == "inside" else spread.eps
    small = eps / math.sqrt(spread.factor) or 1.0
    points = (probe(spread.view, 0), probe(spread.view, 1, small), probe(spread.view, 2, shift=3.0))
    return agrees(part, lambda x: gain * spread.normalize(x), points)


def _written(
    candidate: NormalizerCandidate, match: Match, spread: Spread, source: Expr, gain: Tensor, shift: Tensor
) -> WrittenOut:
    """Return a division by a spread, with the gain and shift that belong to it, as the kind that claims it."""
    kind = kind_of_division(match, spread)
    own = gain if bool((gain != 1).any()) else None
    moved = shift if bool((shift != 0).any()) else None
    result = lambda: normalizer(candidate.call, source, spread, kind, own, moved)  # noqa: E731
    return candidate.written(kind, source, match.source, result, gain=own, spread=spread, eps=match.eps)


def kind_of_division(match: Match, spread: Spread) -> str:
    """Return the kind of a division by a spread; specific kinds come before those that take any axes."""
    claims = [n for n in normalizers().values() if n.claims is not None and n.claims(match, spread)]
    return min(claims, key=lambda n: (n.takes_any_axes, n.kind)).kind


def weight_normalizer(node: Node, around: Surroundings) -> str | None:
    """Return the kind of normalizer of weights that ends at a node made of parameters, or ``None``."""
    for kind, found in normalizers().items():
        if found.of_weight is not None and found.of_weight(node, around):
            return kind
    return None


#: Operations of which one must compute the divisor, and the most operations there may be.
_DIVISORS = ("std", "std_mean", "var", "var_mean", "sqrt", "rsqrt", "linalg_vector_norm", "norm", "pow")
_MOST_OPERATIONS = 40
#: The most entries of a weight that is checked on numbers, and the size of these, at which no stabilizer matters.
_LARGEST, _FAR = 2**22, 1e6


def divides_filters(node: Node, around: Surroundings, *, centered: bool) -> bool:
    r"""Return whether a quotient is :math:`g_i (w_i - m_i)/s_i` for every filter :math:`w_i` of a parameter.

    With ``centered``, :math:`m_i` is the mean of the filter and :math:`s_i` its deviation, as in ``w / (std + eps)``
    with the deviation of a reshaped weight, or a mean taken axis by axis. Without, :math:`m_i = 0` and :math:`s_i` is
    the length, as in ``w / (norm + eps)``. This is verified on random weights, so large
    that no stabilizer matters.

    Returns:
        True if this holds on three random weights of different sizes and means, with the same gains :math:`g_i`.
    """
    source = _parameter_behind(node, around)
    if source is None:
        return False
    function, gains = around.run(node, source.name), []
    for seed, factor, shift in ((0, 1.0, 0.0), (1, 3.0, 5.0), (2, 0.5, -2.0)):
        x = probe(source.shape or (), seed, _FAR * factor, _FAR * shift)
        rows, y = x.flatten(1), function(x)
        if y is None or y.shape != node.shape or rows.shape[1] < 2:
            return False
        moved = rows - rows.mean(1, keepdim=True) if centered else rows
        z = moved / moved.square().mean(1, keepdim=True).sqrt()
        gain = (y.flatten(1) * z).mean(1, keepdim=True)
        if not torch.allclose(y.flatten(1), gain * z, rtol=1e-6, atol=1e-6 * float(gain.abs().max())):
            return False
        gains.append(gain)
    return bool(gains[0].any()) and all(torch.allclose(gain, gains[0], rtol=1e-6) for gain in gains)


def _parameter_behind(node: Node, around: Surroundings) -> Node | None:
    """Return the parameter of the same size that a quotient is computed from, or ``None``."""
    if name_of(node) not in ("div", "mul") or not node.shape or len(node.shape) < 2:
        return None
    source: Node | None = None
    behind, seen = [node.name], set[str]()
    while behind and len(seen) < _MOST_OPERATIONS:
        item = around.graph[behind.pop()]
        if item.name in seen:
            continue
        seen.add(item.name)
        if item is not node and around.is_site(item.name):
            return None  # a factor after one
        if item.op == "parameter" and (item.shape or ())[:1] == node.shape[:1] and _size(item) == _size(node):
            source = item
        behind.extend(item.inputs())
    if source is None or _size(node) > _LARGEST or not around.acts_as_weight(node):
        return None
    return source if any(name_of(around.graph[n]) in _DIVISORS for n in seen) else None


def _size(node: Node) -> int:
    """Return the number of entries of a constant."""
    return math.prod(node.shape or ())
