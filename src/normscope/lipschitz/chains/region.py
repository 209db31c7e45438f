"""Which part of a network a chain may run over: all entrywise functions of bounded slope below a tensor."""

from collections.abc import Mapping
from dataclasses import dataclass

from normscope.operators.expression import Expr


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
    sources: dict[int, Expr] = {}
    units: dict[int, Expr] = {}
    stack = [atoms[key] for key in target.atoms if key in atoms]
    while stack:
        atom = stack.pop()
        if atom.id in sources or atom.id in units:
            continue
        if not atom.atom.inputs or atom.atom.sector is None:
            sources[atom.id] = atom
            continue
        units[atom.id] = atom
        stack.extend(atoms[key] for key in atom.atom.inputs[0].atoms if key in atoms)
    order = lambda found: tuple(found[key] for key in sorted(found))  # noqa: E731
    return Region(target, order(sources), order(units))
