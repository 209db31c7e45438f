"""Chain certificates within a network: the tensors at which chains end, and their Lipschitz constants."""

import math
from collections.abc import Callable, Sequence

from normscope.lipschitz.chains.certificate import SPEED, certify
from normscope.lipschitz.chains.dense import dense_form, fits
from normscope.lipschitz.chains.max_pool import is_maximum, without_maxima
from normscope.lipschitz.chains.pattern_floor import STARTS, pattern_floor
from normscope.lipschitz.chains.region import Region, region_below
from normscope.lipschitz.chains.search import reduced
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Context, Lip
from normscope.operators.program import Program

#: Seconds of search for all regions of a network together, by default.
SECONDS = 4.0
#: What one region, and each of its matrices, costs however small it is, in multiplications: most of it is Python.
EACH_REGION, EACH_MATRIX = 1e8, 2e7
#: How many times longer than the search of one region, and of all together, forming their matrices may take.
LONGEST, LONGEST_OF_ALL = 6.0, 2.0
#: Matrix side above which fewer patterns are tried for the floor.
WIDE = 160


class Chains:
    """Certificates of the regions of one program, each found once and used on every domain.

    The regions end at the outputs and at the inputs of operations other than entrywise functions of bounded slope.

    Args:
        program: the network.
        seconds: of search, for all regions together.
        progress: called with a line of text.
    """

    def __init__(
        self, program: Program, *, seconds: float = SECONDS, progress: Callable[[str], None] = lambda text: None
    ) -> None:
        self.program, self.progress = program, progress
        self._atoms = {atom.id: atom for atom in program.atoms}
        inner = {e.id for atom in program.atoms if atom.atom.sector is None for e in atom.atom.inputs}
        self.ends = frozenset(inner)
        self.seconds = seconds / (len(inner) + max(1, len(program.outputs)))
        self._left = LONGEST_OF_ALL * seconds
        self._maxima = sum(map(is_maximum, program.atoms))
        self._found: dict[int, list[tuple[Region, list[float]]]] = {}

    @property
    def used(self) -> bool:
        """Return whether any region has a certificate so far."""
        return any(self._found.values())

    def lipschitz(self, target: Expr, context: Context) -> Lip | None:
        r"""Return the constant of a tensor by its chain, or ``None`` where there is none.

        :math:`|dT|^2 \le \sum_i c_i^2 |ds_i|^2`, and each source :math:`s_i` has its constant on the domain.
        """
        found = None
        for region, logs in self.certificates(target, context):
            lips = [context.lipschitz(s).scaled(log) for s, log in zip(region.sources, logs, strict=True)]
            one = lips[0].root_sum_square(*lips[1:])
            found = one if found is None else found.minimum(one)
        return found

    def certificates(self, target: Expr, context: Context) -> list[tuple[Region, list[float]]]:
        """Return the regions that end at a tensor and their certificates; the context weighs their sources.

        One region begins at max-pools; a second one, where it is small, runs through them.
        """
        if target.id not in self._found:
            self._found[target.id] = found = []
            for region, seconds in self._regions(target):
                if region.units and region.sources and self._paid(region):
                    logs = [max(context.lipschitz(source).certified) for source in region.sources]
                    one = certify(region, logs, seconds=seconds, progress=self.progress)
                    found += [] if one is None else [(region, one)]
        return self._found[target.id]

    def _regions(self, target: Expr) -> list[tuple[Region, float]]:
        """Return the regions that end at a tensor, if there is time to look for them, and the seconds for each.

        A region that runs through max-pools to an output gets the time of all regions that begin and end at them.
        """
        if not self._affordable([len(target.atoms)]):
            return []
        regions = [(region_below(target, self._atoms), self.seconds)]
        opened, atoms = without_maxima(target, self._atoms) if self._maxima else (target, self._atoms)
        if opened is not target:
            through = region_below(opened, atoms)
            joined = 1 if target.id in self.ends else 1 + self._maxima
            regions += [(through, joined * self.seconds)] if fits(through) else []
        return regions

    def _affordable(self, reads: Sequence[int]) -> bool:
        """Return whether there is time for one region whose tensors read so many atoms each."""
        return _seconds(reads) <= min(LONGEST * self.seconds, self._left)

    def _paid(self, region: Region) -> bool:
        """Return whether there is time for the matrices of a region, and deduct it: by counting, not by a clock."""
        atoms = {atom.id for atom in (*region.sources, *region.units)}
        readers = (region.target, *(unit.atom.inputs[0] for unit in region.units))
        reads = [len(atoms & reader.atoms) for reader in readers]
        if not self._affordable(reads):
            return False
        self._left -= _seconds(reads)
        return True

    def floor(self, target: Expr) -> float | None:
        """Return the log of a value that no bound over free activation patterns can go below, where that is cheap."""
        region = region_below(*without_maxima(target, self._atoms))
        if len(region.sources) != 1 or region.sources[0].atom.inputs or not region.units or not fits(region):
            return None
        form = dense_form(region, (1.0,))
        if form is None:
            return None
        starts = STARTS if max(form.sizes) <= WIDE else 2
        value = pattern_floor(reduced(form), starts=starts)
        return math.log(value) if 0.0 < value < math.inf else None


def _seconds(reads: Sequence[int]) -> float:
    """Return about how long preparing a region takes: the more atoms a tensor reads, the longer the way to each."""
    return (EACH_REGION + EACH_MATRIX * sum(n * n for n in reads)) / SPEED
