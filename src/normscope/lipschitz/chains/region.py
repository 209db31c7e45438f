"""The part of a network below a tensor that a chain covers: linear maps and entrywise functions of bounded slope."""

from collections.abc import Mapping
from dataclasses import dataclass

from normscope.operators.expression import Expr, reached


@dataclass(frozen=True, eq=False)
class Region:
    """A maximal part of a network made of linear maps and entrywise functions of bounded slope."""

    target: Expr  #: the tensor it ends at
    sources: tuple[Expr, ...]  #: the atoms it starts from: inputs of the network and other nonlinear operations
    units: tuple[Expr, ...]  #: the entrywise functions, in order of evaluation

    def number(self) -> dict[int, int]:
        """Return the number of every source and unit in a form, by the id of its expression."""
        return {atom.id: k for k, atom in enumerate((*self.sources, *self.units))}


def region_below(target: Expr, atoms: Mapping[int, Expr]) -> Region:
    """Return the largest region that ends at a tensor.

    Args:
        target: the tensor.
        atoms: the atoms of the network by id.
    """

    def is_source(atom: Expr) -> bool:
        return not atom.atom.inputs or atom.atom.sector is None

    def read_by(expr: Expr) -> list[Expr]:
        return [atoms[key] for key in expr.atoms if key in atoms]

    found = reached(read_by(target), lambda atom: () if is_source(atom) else read_by(atom.atom.inputs[0]))
    sources = tuple(atom for atom in found if is_source(atom))
    return Region(target, sources, tuple(atom for atom in found if not is_source(atom)))
