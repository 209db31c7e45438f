"""Linear paths of a program from layers into normalizers, and what normalizers cancel along them."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.operators.expression import Expr, offset, operands, reached
from normscope.operators.normalizer import acts_on_weights
from normscope.operators.program import Program
from normscope.operators.site import Site
from normscope.operators.spread_division import Division, Spread

#: Numbers below this count as zero among numbers of size one computed in float64.
ZERO = 1e-9
#: Relative difference below which two results computed in float64 are equal.
SAME = 1e-6


@dataclass(frozen=True, eq=False)
class NormalizedLayer:
    """A linear layer whose output reaches a normalizer linearly."""

    layer: Expr  #: the layer's output, before anything else
    site: Site  #: the normalizer
    source: Expr  #: what the normalizer normalizes
    spread: Spread  #: its groups and stabilizer


class Structure:
    """Relations between the expressions of a program.

    Args:
        program: with batch statistics, so that every normalizer of activations is an atom of its own.
    """

    def __init__(self, program: Program) -> None:
        self.program = program

    @functools.cached_property
    def parents(self) -> dict[int, list[Expr]]:
        """Return the expressions that read each expression, by its id."""
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
        """Yield every normalizer of activations that divides by its own spread, with its input and its atom."""
        for site in self.program.sites:
            if not acts_on_weights(site) and site.spread is not None and site.node in self.divisions:
                yield site, self.program.ends[site.node][0], self.divisions[site.node]

    @functools.cached_property
    def normalized_layers(self) -> list[NormalizedLayer]:
        """Return every linear layer with every normalizer it reaches linearly, in order."""
        layers = {e.id for e in self.program.layers}
        found = []
        for site, source, _ in self.sites():
            if site.spread is None:
                continue
            found += [NormalizedLayer(e, site, source, site.spread) for e in reached([source])[::-1] if e.id in layers]
        return found

    def is_confined(self, expr: Expr, site: Site) -> bool:
        """Return whether every path from an expression to an output passes through the normalizer."""
        gate = self.divisions[site.node].id
        outputs = {e.id for _, e in self.program.outputs}
        found = reached([expr], lambda e: () if e.id == gate else self.parents.get(e.id, ()))
        return outputs.isdisjoint(e.id for e in found if e.id != gate)

    def is_scale_invariant(self, normalized: NormalizedLayer) -> bool:
        """Return whether the network is invariant to a positive factor on a layer's weight, except for eps.

        Every path from the layer passes through the normalizer, the normalizer reads nothing else, and no constant is
        added on the way that it would not subtract.
        """
        sees = reached([normalized.source], lambda e: () if e.op is None or e.id == normalized.layer.id else e.inputs)
        if any(e.op is None and e.atoms for e in sees) or not self.is_confined(normalized.layer, normalized.site):
            return False
        constant = offset(normalized.source, {})
        return bool(centred(normalized.spread, constant).abs().max() <= ZERO * max(1.0, float(constant.abs().max())))


def centred(spread: Spread, value: Tensor) -> Tensor:
    """Return a constant without the mean of each group, if the normalizer is centred."""
    view = value.reshape(spread.view)
    return view - view.mean(spread.axes, keepdim=True) if spread.centered else view


def propagated(start: Expr, source: Expr, value: Tensor) -> Tensor:
    """Return the change of ``source`` when a tensor is added to ``start``, along all linear paths."""
    values: dict[int, Tensor] = {start.id: value}
    for expr in reached([source]):
        if expr.id <= start.id or expr.op is None:
            continue
        arrived = [values[i.id] for i in expr.inputs if i.id in values]
        if arrived and expr.op.kind == "sum":  # only of what arrives: adding zeros takes time, too
            values[expr.id] = functools.reduce(torch.add, arrived)
        elif arrived:
            operands = (values.get(i.id, torch.zeros(i.shape, dtype=value.dtype)) for i in expr.inputs)
            values[expr.id] = expr.op.apply(*operands)
    return values.get(source.id, torch.zeros(source.shape, dtype=value.dtype))


def are_normalized_alike(spread: Spread, x: Tensor, y: Tensor) -> bool:
    """Return whether a normalizer with eps = 0 maps two inputs to the same finite values in float64."""
    a, b = (replace(spread, eps=0.0).normalize(t) for t in (x, y))
    finite = bool(torch.isfinite(a).all() and torch.isfinite(b).all())
    return finite and bool((a - b).abs().max() <= SAME * max(1.0, float(a.abs().max())))
