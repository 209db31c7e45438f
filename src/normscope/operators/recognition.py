"""Find the normalizer that ends at a node: by its own pattern, or as a division by the spread of its own input."""

from __future__ import annotations

import math

from normscope.graph.ir import Node
from normscope.graph.recognise import Match
from normscope.operators.normalization import Spread, normalizer
from normscope.operators.normalizer import normalizers
from normscope.operators.replay import divides_by_spread
from normscope.operators.written_out import Place, Surroundings, Written


def find_normalizer(place: Place) -> Written | None:
    """Return the normalizer of activations that ends at a place, or ``None``; numbers decide, not looks alone."""
    for found in (n.written_out(place) for n in normalizers().values() if n.written_out is not None):
        if found is not None:
            return found
    match = place.around.recogniser.match(place.node)
    return None if match is None else _division(place, match)


def _division(place: Place, match: Match) -> Written | None:
    """Return a division by a spread as the normalizer that claims it."""
    source = place.source(match.source)
    if source is None:
        return None
    rank = len(source.shape)
    axes = tuple(sorted(a % rank for a in match.axes))
    n = math.prod(source.shape[a] for a in axes)
    factor = match.scale * (n / max(n - match.correction, 1e-300) if match.root_of == "mean" else float(n))
    spread = Spread(source.shape, axes, match.eps, match.centered, factor, match.where)
    if divides_by_spread(spread, place.around.run(place.node, match.source)) is not True:
        return None  # what cannot be evaluated by itself depends on something else too
    kind = kind_of_division(match, spread)
    gamma, beta = place.around.affine_after(place.node)
    site = place.site(kind, source, match.source, spread=spread, gamma=gamma, beta=beta, eps=match.eps)
    return Written(site, source, lambda: normalizer(place.call, source, spread, kind))


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
