r"""A lower limit of all bounds in which every activation chooses its slope independently.

Such a bound is at least :math:`\max_D \|T (D_n W_n \cdots)\|` over all diagonal slopes D between a and b, whatever
input has them. Ascent over these patterns finds an attained value: along the leading singular vectors of one pattern,
every entry takes the slope that adds most, unit by unit.
"""

import torch
from torch import Tensor

from normscope.core.statement import statement
from normscope.lipschitz.chains.chain_form import ChainForm

#: Patterns to start from, and the most sweeps over all units from each.
STARTS, SWEEPS = 12, 40


@statement("normscope", "Pattern floor", holds="slopes between a and b, chosen freely; one block")
def pattern_floor(form: ChainForm, *, starts: int = STARTS) -> float:
    """Return the largest norm found over patterns of slopes: no bound of this kind is smaller.

    Args:
        form: the part of the network, one real block, one source.
        starts: patterns to start from: all steep, then random ones.

    >>> from normscope.lipschitz.chains.chain_form import chain
    >>> net = chain([torch.eye(2), torch.tensor([[1.0, -1.0]])])
    >>> round(pattern_floor(net), 4)
    1.4142
    """
    generator = torch.Generator().manual_seed(0)
    best = 0.0
    for index in range(starts):
        slopes = []
        for unit in form.units:
            high = torch.rand(unit.size, generator=generator, dtype=torch.float64) < (2.0 if index == 0 else 0.5)
            slopes.append(unit.low + (unit.high - unit.low) * high.double())
        last = 0.0
        for _ in range(SWEEPS):
            left, value, right = _leading(form, slopes)
            best = max(best, value)
            if value <= last * (1.0 + 1e-6):
                break
            last = value
            slopes = _raised(form, slopes, left, right)
    return best


def _leading(form: ChainForm, slopes: list[Tensor]) -> tuple[Tensor, float, Tensor]:
    """Return the leading singular vectors and value of the target with given slopes."""
    values = {0: torch.eye(form.sources[0], dtype=torch.float64)}
    for k, unit in enumerate(form.units):
        z = sum(block.value[0] @ values[j] for j, block in unit.inputs.items())
        values[k + 1] = slopes[k][:, None] * z
    whole = torch.stack([block.value[0] @ values[j] for j, block in form.target.items()]).sum(0)
    if not bool(torch.isfinite(whole).all()):
        return whole.new_zeros(len(whole)), 0.0, whole.new_zeros(whole.shape[1])  # too large for a float: no value
    left, sizes, right = torch.linalg.svd(whole, full_matrices=False)
    return left[:, 0], float(sizes[0]), right[0]


def _raised(form: ChainForm, slopes: list[Tensor], left: Tensor, right: Tensor) -> list[Tensor]:
    """Return slopes that make the product along two vectors larger, unit by unit in order of evaluation."""
    adjoints = {j: block.value[0].mT @ left for j, block in form.target.items()}
    for k in range(len(form.units) - 1, -1, -1):
        pulled = slopes[k] * adjoints.get(k + 1, torch.zeros_like(slopes[k]))
        for j, block in form.units[k].inputs.items():
            found = block.value[0].mT @ pulled
            adjoints[j] = adjoints[j] + found if j in adjoints else found
    values, raised = {0: right}, []
    for k, unit in enumerate(form.units):
        z = torch.stack([block.value[0] @ values[j] for j, block in unit.inputs.items()]).sum(0)
        gains = adjoints.get(k + 1, torch.zeros_like(z)) * z
        raised.append(unit.low + (unit.high - unit.low) * (gains > 0).double())
        values[k + 1] = raised[k] * z
    return raised
