r"""Transformations of weights that a normalizer undoes, in closed form, and their dimension.

All are exact for ``eps = 0`` and statistics of the data at hand; :func:`scale_deviation` says how far ``eps > 0`` is.
"""

import math
from typing import Literal

from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import as_float64, require_nonnegative
from normscope.core.statement import statement
from normscope.operators.normalizer import Symmetry, normalizers

Kind = Literal["none", "batch", "layer", "group", "rms"]
KINDS: tuple[Kind, ...] = ("none", "batch", "layer", "group", "rms")


def undone_by(kind: Kind) -> Symmetry:
    """Return the symmetry of the weights before a normalizer of this kind."""
    found = normalizers()[f"{kind}_norm"].symmetry
    assert found is not None
    return found


@statement(
    "akbar2025", "Proposition 4.1", holds="eps = 0 and batch statistics; one positive factor per neuron, any bias"
)
def batch_norm_orbit(weight: Tensor, scales: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    r"""Return ``(diag(c) W, b')``: BatchNorm undoes a positive factor per neuron and every bias.

    Args:
        weight: ``W``, one row per neuron.
        scales: ``c > 0``, one per neuron.
        bias: the new bias, whatever it is.

    Raises:
        InputError: if a factor is not positive or the numbers do not fit.

    >>> import torch
    >>> batch_norm_orbit(torch.ones(2, 1), torch.tensor([2.0, 3.0]), torch.zeros(2))[0].tolist()
    [[2.0], [3.0]]
    """
    factors = as_float64(scales, "scales").reshape(-1)
    if factors.numel() != weight.shape[0] or bias.numel() != weight.shape[0]:
        raise InputError(f"Expected {weight.shape[0]} scales and biases, got {factors.numel()} and {bias.numel()}.")
    if not bool((factors > 0).all()):
        raise InputError("Expected positive factors: a negative one changes the sign of BatchNorm's output.")
    return as_float64(weight, "weight") * factors[:, None], as_float64(bias, "bias")


@statement("akbar2025", "Proposition 4.2", holds="eps = 0; completed by the common row, the shift of every weight row")
def layer_norm_orbit(
    weight: Tensor, bias: Tensor, scales: Tensor, rows: Tensor, shifts: Tensor
) -> tuple[Tensor, Tensor]:
    r"""Return ``(c W + 1 v^T, c b + d 1)``, one ``(c, v, d)`` per group of neurons: what LayerNorm or GroupNorm undoes.

    Args:
        weight: ``W``, one row per neuron; groups are consecutive rows of equal number.
        bias: ``b``.
        scales: ``c > 0``, one per group (one for LayerNorm).
        rows: ``v``, one row per group.
        shifts: ``d``, one per group.

    Raises:
        InputError: if a factor is not positive or the groups do not divide the neurons.

    >>> import torch
    >>> layer_norm_orbit(torch.eye(2), torch.zeros(2), torch.ones(1), torch.ones(1, 2), torch.ones(1))[0].tolist()
    [[2.0, 1.0], [1.0, 2.0]]
    """
    factors = as_float64(scales, "scales").reshape(-1)
    neurons, groups = weight.shape[0], factors.numel()
    if neurons % groups or rows.shape != (groups, weight.shape[1]) or shifts.numel() != groups:
        raise InputError(f"Expected {groups} groups to divide {neurons} neurons, with one row and one shift each.")
    if not bool((factors > 0).all()):
        raise InputError("Expected positive factors: a negative one changes the sign of the normalizer's output.")
    spread = neurons // groups
    every = [t.repeat_interleave(spread, 0) for t in (factors, as_float64(rows, "rows"))]
    moved = as_float64(shifts, "shifts").reshape(-1).repeat_interleave(spread, 0)
    return (
        as_float64(weight, "weight") * every[0][:, None] + every[1],
        as_float64(bias, "bias") * every[0] + moved,
    )


@statement("akbar2025", "Proposition 4.1 (stabilizer)", holds="what eps > 0 does to the invariance; exact")
def scale_deviation(c: float, sigma: float, eps: float) -> float:
    r"""Return ``rho(c) = sqrt((1 + eps/sigma^2)/(1 + eps/(c sigma)^2))``, by which ``W -> cW`` scales the output.

    One for ``eps = 0``; the invariance is exact iff ``eps -> c^2 eps`` at the same time.

    Args:
        c: the factor, positive.
        sigma: the standard deviation before, positive.
        eps: the stabilizer.

    Raises:
        InputError: if ``c`` or ``sigma`` is not positive.

    >>> scale_deviation(10.0, 1.0, 0.0), round(scale_deviation(10.0, 1.0, 1.0), 4)
    (1.0, 1.4072)
    """
    if not (c > 0 and sigma > 0):
        raise InputError(f"Expected a positive factor and standard deviation, got {c} and {sigma}.")
    relative = require_nonnegative(eps, "eps") / sigma**2
    return math.sqrt((1.0 + relative) / (1.0 + relative / c**2))


@statement("akbar2025", "Corollary 4.1.1", holds="corrected for eps > 0; per neuron, the bias's gradient is zero")
def radial_derivative(variance: Tensor, gamma: Tensor, gamma_gradient: Tensor, eps: float) -> Tensor:
    r"""Return ``<w_i, grad_{w_i} L> = (eps/(sigma_i^2 + eps)) gamma_i dL/dgamma_i`` for every neuron under BatchNorm.

    Args:
        variance: ``sigma_i^2``, the biased variance of each neuron's pre-activations over the batch.
        gamma: the scales.
        gamma_gradient: ``dL/dgamma_i``.
        eps: the stabilizer.

    Returns:
        The radial derivatives in float64, zero for ``eps = 0``.

    >>> import torch
    >>> radial_derivative(torch.ones(1), torch.full((1,), 2.0), torch.full((1,), 3.0), 1.0).tolist()
    [3.0]
    """
    spread = as_float64(variance, "variance")
    share = require_nonnegative(eps, "eps") / (spread + eps)
    return share * as_float64(gamma, "gamma") * as_float64(gamma_gradient, "gamma_gradient")


@statement("akbar2025", "Table 1", holds="corrected; generic weights, eps = 0; LN and GN also undo W -> W + 1 v^T")
def symmetry_dimension(
    kind: Kind, neurons: int, inputs: int, *, groups: int = 1, affine: bool = True, homogeneous: bool = False
) -> int:
    r"""Return how many directions of the parameters of one hidden layer leave the network unchanged.

    BatchNorm: a scale and a bias per neuron; LayerNorm: ``1 + inputs + 1``; GroupNorm: that per group; RMSNorm: 1. A
    positively homogeneous activation (ReLU) adds one per neuron where something before it scales with the output: the
    layer itself without a normalizer, or the affine parameters ``(gamma_i, beta_i)`` behind one. A network with more
    parameters than its data determine has further flat directions, which are no symmetries.

    Args:
        kind: the normalizer, one of :data:`KINDS`.
        neurons: how many neurons the layer has; at least three per group for ``layer`` and ``group``, where two are
            normalized to a sign and every weight is flat.
        inputs: how many inputs each has, besides a bias.
        groups: how many groups, for ``group``.
        affine: whether the normalizer has a scale and a shift.
        homogeneous: whether the activation is positively homogeneous and a linear layer follows.

    Raises:
        InputError: if the kind is unknown or the numbers do not fit.

    >>> symmetry_dimension("batch", 4, 3, homogeneous=True), symmetry_dimension("layer", 4, 3)
    (12, 5)
    """
    if kind not in KINDS:
        raise InputError(f"Expected the normalizer to be one of {', '.join(KINDS)}, got {kind!r}.")
    if min(neurons, inputs, groups) < 1 or neurons % groups:
        raise InputError(
            "Expected positive neurons, inputs and groups, with groups dividing neurons, got "
            f"{neurons}, {inputs} and {groups}."
        )
    if kind in ("layer", "group") and neurons // groups < 3:
        raise InputError(f"Normalizing over {neurons // groups} neurons leaves at most a sign. Use at least three.")
    own = 0 if kind == "none" else undone_by(kind).dimension(neurons, inputs, groups)
    return own + (neurons if homogeneous and (affine or kind == "none") else 0)
