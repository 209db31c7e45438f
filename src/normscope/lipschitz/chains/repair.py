"""Multipliers raised just as far as a form needs them: for frequencies at which they were not searched."""

import torch
from torch import Tensor

from normscope.lipschitz.chains.elimination import first_blocks, joined, without
from normscope.lipschitz.chains.form import Form

#: Half of how far twice the multipliers must lie above the form.
ROOM = 0.505


def repaired(form: Form, multipliers: list[Tensor], balance: Tensor) -> tuple[list[Tensor], Tensor] | None:
    """Return multipliers, raised where they are too small, and the squares they leave, one per block.

    Args:
        form: the part of the network.
        multipliers: of every unit.
        balance: logarithms of the constant allowed for each source, up to a common factor.

    >>> from normscope.lipschitz.chains.form import chain
    >>> net = chain([torch.eye(2), 3 * torch.eye(2)])
    >>> raised, squares = repaired(net, [torch.ones(2).double()], torch.zeros(1).double())
    >>> bool(2 * raised[0][0] > 9.0), bool(squares >= 9.0)
    (True, True)
    """
    blocks = first_blocks(form)
    found: list[Tensor] = []
    for place in range(len(form.units) - 1, -1, -1):
        number, unit = place + form.first, form.units[place]
        half = multipliers[place].rsqrt().to(form.dtype.to_real())
        top = float(torch.linalg.eigvalsh(half[:, None] * blocks[number, number] * half)[:, -1].max())
        found.append(multipliers[place] * max(1.0, ROOM * top))
        step = without(blocks, number, unit, found[-1].to(half))
        if step is None:
            return None
        blocks = step[0]
    rest = joined(form, blocks)
    units = torch.cat([(-b).exp().expand(n) for b, n in zip(balance, form.sources, strict=True)]).to(rest.real.dtype)
    return found[::-1], torch.linalg.eigvalsh(units[:, None] * rest * units)[:, -1].double()
