r"""Weight normalization ``w = g v/||v||``: its gradients and what leaves it unchanged."""

import torch
from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import as_float64
from normscope.core.statement import statement


@statement("akbar2025", "Section 3.2 (weight norm)", holds="corrected: the whole Jacobian, and one factor 1/||v|| less")
def weight_norm_gradients(v: Tensor, g: Tensor, weight_gradient: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return ``grad_v = (g/||v||)(I - v^v^^T) grad_w`` and ``grad_g = <v^, grad_w>`` for every row.

    Hence ``<v, grad_v> = 0``: the symmetry is ``v -> alpha v`` with ``g`` fixed.

    Args:
        v: the directions, one row per output.
        g: the gains, one per output.
        weight_gradient: the gradient with respect to the effective weight, of the shape of ``v``.

    Returns:
        The gradients with respect to ``v`` and ``g``, in float64.

    Raises:
        InputError: if the shapes do not fit or a row of ``v`` is zero.

    >>> grad_v, grad_g = weight_norm_gradients(torch.tensor([[3.0, 4.0]]), torch.ones(1), torch.tensor([[1.0, 0.0]]))
    >>> grad_v.round(decimals=4).tolist(), grad_g.round(decimals=4).tolist()
    ([[0.128, -0.096]], [0.6])
    """
    rows, back, gain = as_float64(v, "v"), as_float64(weight_gradient, "weight_gradient"), as_float64(g, "g")
    if rows.ndim != 2 or rows.shape != back.shape or gain.shape != rows.shape[:1]:
        shapes = f"{tuple(rows.shape)}, {tuple(gain.shape)} and {tuple(back.shape)}"
        raise InputError(
            "Expected v and the gradient of its weight to be matrices of one shape, and g to have one "
            f"entry per row; got {shapes}."
        )
    norms = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
    if bool((norms == 0).any()):
        raise InputError("WeightNorm needs nonzero directions v: a zero row has no effective weight.")
    unit = rows / norms
    along = (unit * back).sum(1)
    return gain[:, None] / norms * (back - along[:, None] * unit), along
