"""A loss at given outputs and targets: the norm of its derivative there."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.core.rounding import matrix_norm_sandwich
from normscope.core.statement import statement
from normscope.core.value import Kind, Value

#: Entries a Jacobian of an unreduced loss may have.
LARGEST = 2**24


@statement("normscope", "Proposition LOSS-14", holds="float64 differentiation; a subgradient where there is a kink")
def loss_at(loss: nn.Module, *arguments: Tensor, inputs: int = 1) -> Value:
    """Return the norm of the derivative of a loss at given outputs: ``||dL/dh||``, the local constant there.

    It never exceeds the constant of the loss, up to rounding. The module and the tensors are not touched: a copy is run
    in float64.

    Args:
        loss: the loss, its reduction included; an unreduced loss gives the spectral norm of its Jacobian.
        arguments: what it is called with: outputs first, then targets.
        inputs: how many of the arguments are outputs (two for pairs, three for triplets).

    Raises:
        InputError: if the first arguments are not real numbers, or an unreduced loss is too large for this.

    >>> round(loss_at(nn.CrossEntropyLoss(), torch.zeros(1, 2), torch.tensor([0])).value, 9)
    0.707106781
    """
    if not 1 <= inputs <= len(arguments) or not all(a.is_floating_point() for a in arguments[:inputs]):
        raise InputError(f"a loss is measured at outputs that are real numbers, {inputs} of the arguments")
    own = copy.deepcopy(loss).double()
    given = [a.detach().double() if a.is_floating_point() else a for a in arguments]
    points = [a.clone().requires_grad_() for a in given[:inputs]]
    with torch.enable_grad():
        out = own(*points, *given[inputs:])
        size = out.numel() * sum(p.numel() for p in points)
        if size > LARGEST:
            raise InputError(f"the Jacobian of an unreduced loss has {size} entries here: reduce it, or give less data")
        rows = [
            torch.cat([g.reshape(-1) for g in torch.autograd.grad(entry, points, retain_graph=True)])
            for entry in out.reshape(-1)
        ]
    matrix = torch.stack(rows)
    norm = float(torch.linalg.vector_norm(matrix)) if len(rows) == 1 else matrix_norm_sandwich(matrix)[0]
    return Value.of(
        norm,
        Kind.ESTIMATE,
        domain="at these outputs and targets",
        statement="normscope Proposition LOSS-14",
        assumptions=("float64 differentiation",),
    )
