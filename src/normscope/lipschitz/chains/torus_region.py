r"""Regions of images on a torus: one Hermitian block per frequency.

A zero-padded network is the same network on a torus whose slopes are zero outside the window, provided no place of the
window reads across the seam; where zero lies between the slopes, every Jacobian of the network is one of the torus
network. With multipliers that depend on the channel and on the phase (the place within a cell of the coarsest grid)
alone, the quadratic form commutes with shifts by a cell.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.lipschitz.chains.chain_form import ActivationUnit, ChainForm, MatrixWithError
from normscope.lipschitz.chains.dense import linear_block
from normscope.lipschitz.chains.region import Region
from normscope.lipschitz.chains.stencil import Stencil, is_image, stencils

#: Error of one entry of a symbol, relative to the sum of the magnitudes of its taps.
SYMBOL_ERROR = 2.0**-44
#: Largest side of a block, and most numbers of the readout.
LARGEST_SIDE, LARGEST_READOUT = 512, 2**22


@dataclass(frozen=True, eq=False)
class TorusRegion:
    """A region of images, ready to be written at any frequencies."""

    region: Region  #: the part of the network
    cells: int  #: cells of the coarsest grid per axis
    phases: tuple[int, ...]  #: places per cell and axis of every source and unit, by its number
    units: tuple[dict[int, Stencil], ...]  #: the stencils of every unit by the number of what it reads
    #: the matrix over channels that the target applies to the sum over all places, and its error, by number
    readout: dict[int, tuple[Tensor, Tensor]]

    def frequencies(self) -> list[tuple[int, int]]:
        """Return one of each conjugate pair of frequencies of the grid of cells."""
        m = self.cells
        grid = itertools.product(range(m), repeat=2)
        return [(a, b) for a, b in grid if (a, b) <= ((-a) % m, (-b) % m)]

    def form(self, frequencies: Sequence[tuple[int, int]], weights: tuple[float, ...]) -> ChainForm:
        """Return the form at some frequencies."""
        first = len(self.region.sources)
        atoms = (*self.region.sources, *self.region.units)
        units = []
        for k, read in enumerate(self.units):
            inputs = {j: self._symbol(s, self.phases[k + first], frequencies) for j, s in read.items()}
            units.append(ActivationUnit(inputs, *self.region.units[k].atom.sector))
        target = {}
        for j, (matrix, each) in self.readout.items():
            count = self.phases[j] ** 2
            value = torch.zeros(len(frequencies), len(matrix), matrix.shape[1] * count, dtype=torch.complex128)
            wide = matrix.repeat_interleave(count, 1) * self.cells
            value[torch.tensor([frequency == (0, 0) for frequency in frequencies])] = wide.to(torch.complex128)
            error = each.repeat_interleave(count, 1) * self.cells
            target[j] = MatrixWithError(value, error + 2.0**-50 * wide.abs())
        sizes = tuple(a.shape[1] * self.phases[i] ** 2 for i, a in enumerate(atoms[:first]))
        return ChainForm(sizes, tuple(units), target, weights)

    def _symbol(self, stencil: Stencil, outer: int, frequencies: Sequence[tuple[int, int]]) -> MatrixWithError:
        """Return the matrices of a stencil between the phases of its ends, ``outer`` phases at its end."""
        inner = outer * stencil.stride[0]
        rows, columns = next(iter(stencil.taps.values())).shape
        value = torch.zeros(len(frequencies), rows, outer, outer, columns, inner, inner, dtype=torch.complex128)
        size = torch.zeros(rows, outer, outer, columns, inner, inner, dtype=torch.float64)
        for (dy, dx), tap in stencil.taps.items():
            for a, b in itertools.product(range(outer), repeat=2):
                (qa, ra), (qb, rb) = (divmod(p * stencil.stride[0] + d, inner) for p, d in ((a, dy), (b, dx)))
                for place, (fa, fb) in enumerate(frequencies):
                    turns = (fa * qa + fb * qb) % self.cells
                    angle = 2 * math.pi * turns / self.cells
                    value[place, :, a, b, :, ra, rb] += complex(math.cos(angle), math.sin(angle)) * tap
                size[:, a, b, :, ra, rb] += tap.abs()
        side = (rows * outer * outer, columns * inner * inner)
        error = size.reshape(side) * (SYMBOL_ERROR + stencil.roundings * 2.0**-52)
        return MatrixWithError(value.reshape(len(frequencies), *side), error)


@statement("normscope", "Torus chains", holds="stencils with zero padding, slopes around zero, a readout of the sum")
def torus_region(region: Region) -> TorusRegion | None:
    """Return a region as stencils on a torus, or ``None`` if it is not of this kind.

    All sources and units are images, activations have zero between their slopes, and the target applies one matrix to
    the sum over all places (as an average pool and a linear layer do).
    """
    atoms = (*region.sources, *region.units)
    numbers = region.number()
    if not region.units or not all(is_image(a) and a.shape[2] == a.shape[3] for a in atoms):
        return None
    if any(u.atom.sector[0] > 0.0 or u.atom.sector[1] < 0.0 for u in region.units):
        return None
    found = [stencils(u.atom.inputs[0]) for u in region.units]
    smallest = min(a.shape[2] for a in atoms)
    phases = tuple(max(1, round(a.shape[2] / smallest)) for a in atoms)
    units: list[dict[int, Stencil]] = []
    cells = 1
    for k, read in enumerate(found):
        if read is None:
            return None
        named = {numbers[key]: s for key, s in read.items()}
        own = k + len(region.sources)
        if any((phases[j], phases[j]) != tuple(phases[own] * step for step in s.stride) for j, s in named.items()):
            return None
        cells = max(cells, *(_cells(s, atoms[j].shape[2], atoms[own].shape[2], phases[j]) for j, s in named.items()))
        units.append(named)
    if max(a.shape[1] * p * p for a, p in zip(atoms, phases, strict=True)) > LARGEST_SIDE:
        return None
    readout = _readout(region)
    return None if readout is None else TorusRegion(region, cells, phases, tuple(units), readout)


def _cells(stencil: Stencil, size: int, end: int, phases: int) -> int:
    """Return how many cells keep every place of the window from reading across the seam.

    Places before the window must wrap around to behind it, and no place that is read may lie beyond the torus.
    """
    offsets = [d for pair in stencil.taps for d in pair]
    reach = max(size - min(0, *offsets), stencil.stride[0] * (end - 1) + max(offsets) + 1)
    return -(-reach // phases)


def _readout(region: Region) -> dict[int, tuple[Tensor, Tensor]] | None:
    """Return what a target applies to the sum over all places of each atom, by its number, and its errors."""
    found = {}
    for number, atom in enumerate((*region.sources, *region.units)):
        if atom.id not in region.target.atoms:
            continue
        if len(region.target.atoms) != 1 or region.target.numel * atom.numel > LARGEST_READOUT:
            return None
        block = linear_block(atom, region.target)
        if block is None:
            return None
        matrix = block.value[0].reshape(region.target.numel, atom.shape[1], -1)
        mean = matrix.mean(2)
        error = (matrix - mean[:, :, None]).abs().amax(2)  # what differs from place to place
        if block.error is not None:
            error = error + block.error.reshape(matrix.shape).amax(2)
        if float(error.max()) > 1e-9 * float(mean.abs().max()):
            return None
        found[number] = (mean, error)
    return found
