"""NS103: a normalizer before a linear map it commutes with, made redundant by the next normalizer."""

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from normscope.doctor.rule import Certainty, Findings, Rule, Subject, place_of
from normscope.doctor.structure import Structure, are_normalized_alike, propagated
from normscope.operators.expression import Expr, offset, reached
from normscope.operators.site import Site

#: Operations that keep every entry in its place, up to a factor.
_PLAIN = ("isometry", "diagonal", "contraction")


@dataclass(frozen=True, eq=False)
class NormalizerPair:
    """Two normalizers, the second of which reads only the first, through a linear map."""

    first: Site
    second: Site
    atom: Expr  #: the output of the first, before a separate scale and shift
    before: Expr  #: the input of the first
    after: Expr  #: the output of the first
    source: Expr  #: the input of the second
    between: tuple[Expr, ...]  #: the expressions of the linear map, including the input of the second


def pairs(structure: Structure, *, confined: bool = True) -> Iterator[NormalizerPair]:
    """Yield every pair of normalizers with only a linear map between them.

    Args:
        structure: of the network in training.
        confined: whether to yield those with no path around the second, or those with one.
    """
    by_atom = {atom.id: (site, source, atom) for site, source, atom in structure.sites()}
    for second, source, _ in structure.sites():
        if len(source.atoms) != 1:
            continue
        (key,) = source.atoms
        if key not in by_atom:
            continue
        first, before, atom = by_atom[key]
        if structure.is_confined(atom, second) is confined:
            between = tuple(e for e in reached([source])[::-1] if e.op is not None)
            yield NormalizerPair(first, second, atom, before, _end(structure, first, atom), source, between)


def is_direct(pair: NormalizerPair) -> bool:
    """Return whether only scales, shifts and views lie between two normalizers."""
    return all(e.op is None or e.op.kind in _PLAIN for e in pair.between)


def is_first_removable(subject: Subject, pair: NormalizerPair) -> bool:
    """Return whether the second normalizer gives the same without the first and its scale and shift, except for eps.

    Both are computed on random numbers in float64; they agree only if the linear map between the two commutes
    with the first normalizer up to what the second removes.
    """
    one, two = pair.first.spread, pair.second.spread
    if one is None or two is None or one.size < 2 or two.size < 2:
        return False
    if subject.drops_between(pair.first.node, pair.second.node):
        return False  # the entries that dropout keeps are no longer centred
    x = torch.randn(pair.before.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 3 + 1
    gain = pair.atom.atom.gain
    normalized = replace(one, eps=0.0).normalize(x) * (1.0 if gain is None else gain.double())
    own = offset(pair.after, {})
    rest = offset(pair.source, {}) - propagated(pair.after, pair.source, own)
    with_it = propagated(pair.after, pair.source, propagated(pair.atom, pair.after, normalized) + own) + rest
    without = propagated(pair.after, pair.source, x) + rest
    return are_normalized_alike(two, with_it, without)


def _end(structure: Structure, site: Site, atom: Expr) -> Expr:
    """Return the output of a normalizer, with its scale and shift unless it is written by hand."""
    out = structure.program.ends[site.node][1]
    if out is not None:
        return out
    # Written by hand: a centred normalizer is centred again after the division, which changes nothing.
    readers = structure.parents.get(atom.id, [])
    alone = len(readers) == 1 and readers[0].op is not None and readers[0].op.kind == "contraction"
    return readers[0] if alone else atom


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each normalizer that the next one makes redundant, with a linear map between them."""
    for pair in pairs(subject.structure):
        if is_direct(pair) or not is_first_removable(subject, pair):
            continue
        first, second = place_of(pair.first), place_of(pair.second)
        yield rule.finding(
            first,
            f"{pair.first.kind} {first} has no effect with its present scale and shift (eps aside): the linear map "
            f"after it keeps its groups separate, and {pair.second.kind} {second} normalizes them again",
            {"second": second},
        )


RULE = Rule(
    code="NS103",
    title="normalizer without effect",
    certainty=Certainty.PROVED,
    statement="N A (a N x + b) = N A x if A maps each group by itself: A N = N A up to the factor N removes",
    why="A linear map that treats each channel separately (average pooling, a depthwise convolution, a diagonal) "
    "commutes with a normalizer of channels. If another normalizer of the same channels follows, it alone decides the "
    "result: the first one, its scale and its shift do nothing.",
    effect="none on accuracy: a useless layer, scale and shift",
    fix="remove the first normalizer, or put a nonlinearity between the two",
    example="model = nn.Sequential(nn.BatchNorm2d(8), nn.AvgPool2d(2), nn.BatchNorm2d(8))\n"
    "options = {'input_shape': (8, 6, 6)}",
    good="model = nn.Sequential(nn.BatchNorm2d(8), nn.ReLU(), nn.AvgPool2d(2), nn.BatchNorm2d(8))\n"
    "options = {'input_shape': (8, 6, 6)}",
    threads=("quark0/darts/issues/41",),
)
