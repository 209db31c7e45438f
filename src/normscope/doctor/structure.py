"""Which layer feeds which in a program: linear paths into normalizers, and what a normalizer does with them."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.operators.expression import Expr, operands, reached
from normscope.operators.normalization import Division, Spread
from normscope.operators.normalizer import acts_on_weights
from normscope.operators.program import Program
from normscope.operators.site import Site

#: What counts as zero among numbers of size one computed in float64.
ZERO = 1e-9
#: Relative difference below which two results computed in float64 are the same.
SAME = 1e-6


@dataclass(frozen=True, eq=False)
class Feed:
    """A linear layer whose output reaches a normalizer linearly."""

    layer: Expr  #: the layer's output, before anything else
    site: Site  #: the normalizer
    source: Expr  #: what the normalizer normalizes
    spread: Spread  #: its groups and stabilizer


class Structure:
    """Questions about a program, answered from its expressions.

    Args:
        program: with batch statistics, so that every normalizer of activations is an atom of its own.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @functools.cached_property
    def parents(self) -> dict[int, list[Expr]]:
        """Return for every expression those that read it."""
        found: dict[int, list[Expr]] = {}
        for expr in self.expressions:
            for item in operands(expr):
                found.setdefault(item.id, []).append(expr)
        return found

    @functools.cached_property
    def expressions(self) -> list[Expr]:
        """Return everything an output depends on, in order of evaluation."""
        return reached((expr for _, expr in self.program.outputs), operands)

    @functools.cached_property
    def divisions(self) -> dict[str, Expr]:
        """Return the atom of each normalizer that divides by its own spread, by graph node."""
        return {a.atom.name: a for a in self.program.atoms if isinstance(a.atom, Division)}

    def sites(self) -> Iterator[tuple[Site, Expr, Expr]]:
        """Yield every such normalizer with what it reads and its atom."""
        for site in self.program.sites:
            if not acts_on_weights(site) and site.spread is not None and site.node in self.divisions:
                yield site, self.program.ends[site.node][0], self.divisions[site.node]

    @functools.cached_property
    def feeds(self) -> list[Feed]:
        """Return every linear layer with every normalizer it reaches linearly, in order."""
        layers = {e.id for e in self.program.layers}
        found = []
        for site, source, _ in self.sites():
            if site.spread is None:
                continue
            found += [Feed(e, site, source, site.spread) for e in reached([source])[::-1] if e.id in layers]
        return found

    def confined(self, expr: Expr, site: Site) -> bool:
        """Return whether nothing but a normalizer notices an expression: every path to an output passes its atom."""
        gate = self.divisions[site.node].id
        outputs = {e.id for _, e in self.program.outputs}
        found = reached([expr], lambda e: () if e.id == gate else self.parents.get(e.id, ()))
        return outputs.isdisjoint(e.id for e in found if e.id != gate)

    def is_scale_invariant(self, feed: Feed) -> bool:
        """Return whether the network does not notice a positive factor on a layer's weight, eps left aside.

        The layer is seen through the normalizer alone, the normalizer sees nothing else, and no constant that it
        would not subtract is added on the way.
        """
        sees = reached([feed.source], lambda e: () if e.op is None or e.id == feed.layer.id else e.inputs)
        if any(e.op is None and e.atoms for e in sees) or not self.confined(feed.layer, feed.site):
            return False
        constant = self.constant_part(feed.source)
        return bool(centred(feed.spread, constant).abs().max() <= ZERO * max(1.0, float(constant.abs().max())))

    def constant_part(self, source: Expr) -> Tensor:
        """Return what is added to a source on its linear way, all atoms zero."""
        values: dict[int, Tensor] = {}
        for expr in reached([source]):
            if expr.op is None:
                values[expr.id] = torch.zeros(expr.shape, dtype=torch.float64)
                continue
            value = expr.op.apply(*(values[i.id] for i in expr.inputs))
            values[expr.id] = value if expr.op.bias is None else value + expr.op.bias.to(value)
        return values[source.id]


def centred(spread: Spread, value: Tensor) -> Tensor:
    """Return what a normalizer keeps of a constant: nothing of a group's mean, if it is centred."""
    view = value.reshape(spread.view)
    return view - view.mean(spread.axes, keepdim=True) if spread.centered else view


def carried(start: Expr, source: Expr, value: Tensor) -> Tensor:
    """Return what a tensor added to ``start`` adds to ``source``, along all linear paths."""
    values: dict[int, Tensor] = {start.id: value}
    for expr in reached([source]):
        if expr.id <= start.id or expr.op is None:
            continue
        arrived = [values[i.id] for i in expr.inputs if i.id in values]
        if arrived and expr.op.kind == "sum":  # of what arrives: zeros take as long to add as anything else
            values[expr.id] = functools.reduce(torch.add, arrived)
        elif arrived:
            operands = (values.get(i.id, torch.zeros(i.shape, dtype=value.dtype)) for i in expr.inputs)
            values[expr.id] = expr.op.apply(*operands)
    return values.get(source.id, torch.zeros(source.shape, dtype=value.dtype))


def are_normalized_alike(spread: Spread, x: Tensor, y: Tensor) -> bool:
    """Return whether a normalizer without stabilizer gives the same finite values for two inputs in float64."""
    a, b = (replace(spread, eps=0.0).normalize(t) for t in (x, y))
    finite = bool(torch.isfinite(a).all() and torch.isfinite(b).all())
    return finite and bool((a - b).abs().max() <= SAME * max(1.0, float(a.abs().max())))
