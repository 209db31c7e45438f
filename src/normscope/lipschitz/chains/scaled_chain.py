r"""Initial multipliers, and the form rescaled so that they are about one.

Going backwards, the multipliers of a unit are taken proportional to the diagonal of the form there, with the factor
that makes :math:`2 \Lambda` one and a half times the largest eigenvalue in that metric. When a neuron is scaled,
they scale with it: nothing found from them depends on how the network's neurons are scaled.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.lipschitz.chains.chain_form import ChainForm, MatrixWithError
from normscope.lipschitz.chains.elimination import eliminate_unit, sources_matrix, target_blocks

#: The least factor of the metric, for forms that are negative.
LEAST = 1e-9
#: Multipliers relative to the largest eigenvalue of the form; more than a half is needed.
ABOVE = 0.75


@dataclass(frozen=True, eq=False)
class ScaledChain:
    """A rescaled form with its initial multipliers."""

    form: ChainForm  #: the form with every entry measured in a power of two, so that nothing is rounded
    multipliers: list[Tensor]  #: multipliers of it, about one, for every unit
    square: float  #: the largest eigenvalue they leave, about one
    log_units: list[float]  #: for each source, the logarithm of the constant that is one in the units of the form
    scales: list[Tensor]  #: logarithms of the units of every source and unit, entry by entry

    def measured(self, form: ChainForm) -> ChainForm:
        """Return another form of the same parts, at other frequencies, in the same units."""
        return _in_units(form, self.scales)

    def logs(self, constants: list[float]) -> list[float]:
        """Return logarithms of constants of the form, in the units of the network and rounded up."""
        return [math.log(c) + unit + 1e-13 for c, unit in zip(constants, self.log_units, strict=True)]


def scaled_chain(form: ChainForm) -> ScaledChain | None:
    """Return first multipliers and the form in their units, or ``None`` if it is beyond the range of floats.

    Args:
        form: the part of the network.

    >>> from normscope.lipschitz.chains.chain_form import chain
    >>> first = scaled_chain(chain([1e100 * torch.eye(2).double(), 1e-30 * torch.eye(2).double()]))
    >>> round(math.log10(first.square) / 2 + first.log_units[0] / math.log(10))
    70
    """
    found = _backwards(form)
    if found is None:
        return None
    logs, log_square = found
    roots = [_power_of_two(given / 2) for given in logs]
    unit_log = float(_power_of_two(torch.tensor(log_square / 2, dtype=torch.float64)))
    sources = [torch.full((n,), unit_log - _power_of_two(_log(w)).item(), dtype=torch.float64) for n, w in
               zip(form.sources, form.weights, strict=True)]  # fmt: skip
    scales = [*sources, *roots]
    scaled = _in_units(form, scales)
    multipliers = [(given - 2 * root).exp() for given, root in zip(logs, roots, strict=True)]
    log_units = [float(source[0]) for source in sources]
    return ScaledChain(scaled, multipliers, math.exp(log_square - 2 * unit_log), log_units, scales)


def _in_units(form: ChainForm, scales: list[Tensor]) -> ChainForm:
    """Return a form with every entry measured in its own unit, a power of two."""
    units = tuple(
        replace(unit, inputs=_scaled(unit.inputs, scales, scales[k + form.first])) for k, unit in enumerate(form.units)
    )
    weights = tuple(math.exp(math.log(w) - _power_of_two(_log(w)).item()) for w in form.weights)
    return ChainForm(form.sources, units, _scaled(form.target, scales, None), weights)


def _backwards(form: ChainForm) -> tuple[list[Tensor], float] | None:
    """Return the logarithms of the multipliers of every unit, and of the largest eigenvalue that remains, if finite."""
    blocks = target_blocks(form)
    log = 0.0
    found: list[Tensor] = []
    for place in range(len(form.units) - 1, -1, -1):
        number, unit = place + form.first, form.units[place]
        size = float(blocks[number, number].diagonal(dim1=1, dim2=2).real.mean())
        if not 0.0 < size < math.inf:
            return None
        blocks = {key: block / size for key, block in blocks.items()}
        log += math.log(size)
        own = blocks[number, number]
        diagonal = own.diagonal(dim1=1, dim2=2).real.mean(0)
        shape = torch.where(diagonal > 0, diagonal, diagonal.mean())  # what nothing reads may have any multiplier
        half = shape.rsqrt()
        top = float(torch.linalg.eigvalsh(half[:, None] * own * half)[:, -1].max())
        multiplier = shape * (ABOVE * max(top, LEAST))
        found.append(multiplier.log() + log)
        step = eliminate_unit(blocks, number, unit, multiplier)
        if step is None:
            return None
        blocks = step[0]
    rest = sources_matrix(form, blocks)
    weights = torch.tensor(form.weights, dtype=torch.float64)
    units = weights.repeat_interleave(torch.tensor(form.sources))
    top = float(torch.linalg.eigvalsh(units[:, None] * rest * units)[:, -1].max())
    return (found[::-1], math.log(top) + log) if 0.0 < top < math.inf else None


def _log(x: float) -> Tensor:
    return torch.tensor(math.log(x), dtype=torch.float64)


def _power_of_two(logs: Tensor) -> Tensor:
    """Return logarithms rounded to those of powers of two."""
    return (logs / math.log(2.0)).round() * math.log(2.0)


def _scaled(
    blocks: Mapping[int, MatrixWithError], scales: list[Tensor], rows: Tensor | None
) -> dict[int, MatrixWithError]:
    """Return blocks with columns measured in their units, and rows in the unit of the reader; exactly."""
    found = {}
    for j, block in blocks.items():
        factor = -scales[j] if rows is None else rows[:, None] - scales[j]
        powers = torch.ldexp(torch.ones_like(factor), (factor / math.log(2.0)).round())
        found[j] = MatrixWithError(block.value * powers, None if block.error is None else block.error * powers)
    return found
