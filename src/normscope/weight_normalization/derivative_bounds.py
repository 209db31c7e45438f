r"""Bounds on a weight-normalized predictor and its first two derivatives in the parameters.

A hidden layer is :math:`z = \mathrm{diag}(g)\,\hat V \alpha + c`, :math:`\alpha^+ = \phi(z)`, the rows of
:math:`\hat V` being the rows :math:`v_i` of ``V`` made unit vectors; the output is :math:`f = A \alpha^{(L)}` with
:math:`\|A\| \le \rho`. The paper's own form has :math:`g_i = 1/\sqrt m` and no bias. Norms are Euclidean on activations
and parameters. Along a direction in parameter space, every derivative of an activation is at most a polynomial with
non-negative coefficients in the sizes of the direction's blocks; :func:`hessian_bound` keeps that polynomial,
:func:`hessian_bound_closed` bounds it further until one formula is left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from normscope.core.errors import InputError
from normscope.core.rounding import up
from normscope.core.statement import statement

#: ``sup ||u''||`` over unit directions, for ``u = v/||v||`` at ``||v|| = 1``.
UNIT_VECTOR_SECOND = 2.0 / math.sqrt(3.0)


@dataclass(frozen=True)
class LayerConstants:
    r"""Constants of one hidden layer that the bounds use."""

    norm: float  #: ``t``, an upper bound of the norm of the layer's linear map (at most 1 in the paper's form)
    direction: float  #: ``max_i |g_i|/||v_i||`` times the window factor: how far ``z`` moves with the directions
    direction_second: float  #: ``max_i |g_i|/||v_i||^2`` times the window factor
    slope: float = 1.0  #: ``sup |phi'|``
    curvature: float = math.inf  #: ``sup |phi''|``; infinite for an activation that is not smooth
    gain: float = 0.0  #: the window factor if the gains are trained, else 0
    gain_direction: float = 0.0  #: ``max_i 1/||v_i||`` times the window factor if the gains are trained, else 0
    bias: float = 0.0  #: how far ``z`` moves with a trained bias (1 for a dense layer), else 0
    shift: float = 0.0  #: norm of the bias as part of ``z``
    offset: float = 0.0  #: norm of ``phi(0)`` over all units: ``|phi(0)| sqrt(m)``


def paper_layer(width: int, least_norm: float, slope: float = 1.0, curvature: float = math.inf) -> LayerConstants:
    r"""Return the constants of a layer in the paper's form: gains :math:`1/\sqrt m`, no bias, :math:`\phi(0) = 0`.

    Args:
        width: ``m``.
        least_norm: ``min_i ||v_i||``.
        slope: ``sup |phi'|``.
        curvature: ``sup |phi''|``.

    Raises:
        InputError: if a weight vector is zero, where the layer is not defined.

    >>> paper_layer(4, 2.0).direction
    0.25
    """
    if width < 1 or not least_norm > 0:
        raise InputError(f"Expected a positive width and nonzero weight vectors, got {width}, {least_norm}.")
    size = 1.0 / math.sqrt(width)
    return LayerConstants(1.0, size / least_norm, size / least_norm**2, slope, curvature)


def _units(depth: int) -> float:
    """Return how many unit roundoffs sums and products of non-negative numbers over ``depth`` layers may lose."""
    return 64.0 * (depth + 2)


@statement("normscope", "Proposition WN-3", holds="at most A in the paper's form, at any depth")
def activation_norm_bounds(layers: Sequence[LayerConstants], input_norm: float) -> list[float]:
    r"""Return upper bounds :math:`s_0, ..., s_L` of the norms of the activations.

    :math:`s_l = a (t_l s_{l-1} + \|c_l\|) + |\phi(0)| \sqrt{m_l}` with :math:`s_0 = \max \|x\|`.

    Args:
        layers: the hidden layers.
        input_norm: an upper bound of the norm of the inputs.

    >>> activation_norm_bounds([paper_layer(9, 1.0)] * 3, 2.0)[-1] < 2.0 + 1e-12
    True
    """
    if not (math.isfinite(input_norm) and input_norm >= 0):
        raise InputError(f"Expected a finite bound on the norm of the inputs, got {input_norm}.")
    sizes = [float(input_norm)]
    for layer in layers:
        sizes.append(up(layer.slope * (layer.norm * sizes[-1] + layer.shift) + layer.offset, 8.0))
    return sizes


def activation_norms_nearby(layers: Sequence[LayerConstants], sizes: Sequence[float], moved: float) -> list[float]:
    r"""Return upper bounds of the norms of the activations at all parameters within a distance ``moved``.

    Activation ``l`` moves by at most its slope in the parameters times the distance, and that slope needs only the
    activations before it: :math:`s_l + a \|r_l\|\, d`, and never more than :func:`activation_norm_bounds`.

    The constants of the layers hold within the distance, ``sizes`` are the norms at the centre.

    >>> activation_norms_nearby([paper_layer(4, 2.0)], [1.0, 0.5], 1.0)[-1] < 0.75 + 1e-12
    True
    """
    worst = activation_norm_bounds(layers, sizes[0])
    nearby = [worst[0]]
    for k, layer in enumerate(layers):
        slope = layer.slope * float(np.linalg.norm(_slopes(layers[: k + 1], nearby)[-1]))
        nearby.append(min(worst[k + 1], up(sizes[k + 1] + slope * moved, _units(k))))
    return nearby


@statement("normscope", "Proposition WN-4", holds="at most rho in the paper's form, at any depth")
def lipschitz_bound(layers: Sequence[LayerConstants], output_norm: float) -> float:
    r"""Return :math:`\rho \prod_l a_l t_l`, an upper bound of the Lipschitz constant in the input.

    Arguments are those of :func:`gradient_bound`.

    >>> lipschitz_bound([paper_layer(9, 1.0)] * 50, 3.0) < 3.0 + 1e-10
    True
    """
    bound = float(output_norm)
    for layer in layers:
        bound *= layer.slope * layer.norm
    return up(bound, _units(len(layers)))


def _slopes(layers: Sequence[LayerConstants], sizes: Sequence[float]) -> list[np.ndarray]:
    """Return, for each layer, how far its ``z`` moves per unit of each block: output, then direction, gain, bias."""
    blocks = 1 + 3 * len(layers)
    before = np.zeros(blocks)
    found = []
    for k, layer in enumerate(layers):
        row = layer.norm * before
        row[1 + 3 * k : 4 + 3 * k] += (sizes[k] * layer.direction, sizes[k] * layer.gain, layer.bias)
        found.append(row)
        before = layer.slope * row
    return found


@statement("normscope", "Proposition WN-5", holds="varrho^2 <= A^2 + L rho^2 A^2/(m w^2) in the paper's form")
def gradient_bound(
    layers: Sequence[LayerConstants],
    output_norm: float,
    sizes: Sequence[float],
    *,
    output_bias: bool = False,
) -> float:
    r"""Return an upper bound of :math:`\|\partial f/\partial \theta\|` over all parameters, output layer included.

    Each block moves the output by at most its own factor, so the norm is at most that of the vector of factors:
    :math:`s_L` for the output layer, 1 for its bias, and :math:`\rho` times the movement of the last activation.

    Args:
        layers: the hidden layers.
        output_norm: ``rho``.
        sizes: norms of the activations, ``s_0, ..., s_L``: bounds, or measured ones for the inputs they are of.
        output_bias: whether the output layer trains a bias.

    >>> layers = [paper_layer(4, 2.0)] * 3
    >>> bound = gradient_bound(layers, 5.0, [1.0] * 4)
    >>> abs(bound**2 - (1 + 3 * 25 / (4 * 2.0**2))) < 1e-9
    True
    """
    factors = np.zeros(1 + 3 * len(layers))
    if layers:
        factors = output_norm * layers[-1].slope * _slopes(layers, sizes)[-1]
    factors[0] = sizes[-1]
    total = float((factors**2).sum()) + float(output_bias)
    return up(math.sqrt(total), _units(len(layers)))


@statement("normscope", "Proposition WN-6", holds="activations with bounded second derivative")
def hessian_bound(layers: Sequence[LayerConstants], output_norm: float, sizes: Sequence[float]) -> float:
    r"""Return an upper bound of :math:`\|\nabla^2_\theta\, c^T f\|` over unit vectors ``c``, all parameters together.

    Let ``p`` hold the sizes of the blocks of a direction. First derivatives of ``z`` at layer ``l`` are at most
    :math:`r_l^T p`, second derivatives at most :math:`p^T Z_l p` with

    .. math::
        Y_l &= a Z_l + b\, r_l r_l^T, \\
        Z_l &= s_{l-1} \left(\tfrac{2}{\sqrt 3} d_2\, e_v e_v^T + 2 d_g\, e_v e_g^T\right)
               + 2 (d\, e_v + e_g) (a r_{l-1})^T + t_l Y_{l-1},

    symmetrized, so :math:`c_H = \lambda_{\max}(Q)`, :math:`Q = \rho Y_L + 2 e_0 (a r_L)^T`, the largest eigenvalue of a
    non-negative matrix of side :math:`3L + 1`. It is enclosed from above by :math:`\max_i (Qx)_i/x_i`, ``x > 0``.

    Arguments are those of :func:`gradient_bound`.

    Returns:
        The bound; infinite if an activation is not twice differentiable.

    >>> hessian_bound([paper_layer(4, 1.0)], 1.0, [1.0, 1.0])
    inf
    >>> round(hessian_bound([paper_layer(4, 1.0, curvature=0.0)], 0.0, [1.0, 1.0]), 6)
    0.5
    """
    if any(not math.isfinite(layer.curvature) for layer in layers):
        return math.inf
    blocks = 1 + 3 * len(layers)
    second = np.zeros((blocks, blocks))
    moved = np.zeros(blocks)
    for k, (layer, slope) in enumerate(zip(layers, _slopes(layers, sizes), strict=True)):
        v, g = 1 + 3 * k, 2 + 3 * k
        second = layer.norm * second
        second[v, v] += sizes[k] * UNIT_VECTOR_SECOND * layer.direction_second
        second[v, g] += sizes[k] * 2.0 * layer.gain_direction
        second[v] += 2.0 * layer.direction * moved
        second[g] += 2.0 * layer.gain * moved
        second = layer.slope * second + layer.curvature * np.outer(slope, slope)
        moved = layer.slope * slope
    form = output_norm * second
    form[0] += 2.0 * moved
    return up(_largest_eigenvalue((form + form.T) / 2.0), _units(len(layers)) + 4.0 * blocks)


def _largest_eigenvalue(matrix: np.ndarray) -> float:
    """Return ``max_i (Qx)_i/x_i`` of a symmetric non-negative matrix, at least its largest eigenvalue."""
    if not np.isfinite(matrix).all():
        return math.inf
    rows = matrix.sum(axis=1)
    if not rows.max() > 0:
        return 0.0
    vector = np.abs(np.linalg.eigh(matrix / rows.max())[1][:, -1])
    vector = np.maximum(vector, 1e-8 * vector.max())
    return float(min(rows.max(), (matrix @ vector / vector).max()))


@statement("normscope", "Corollary WN-7", holds="the paper's form; depth enters as L^2/m where the paper prints L^3")
def hessian_bound_closed(
    depth: int, width: int, least_norm: float, output_norm: float, input_norm: float, curvature: float
) -> float:
    r"""Return the Hessian bound of the paper's form as one formula.

    .. math::
        c_H = \rho \left[\frac{2}{\sqrt 3}\frac{A}{\sqrt m w^2} + \frac{2 A L}{m w^2}
              + \frac{b A^2 L (L+1)}{2 m w^2}\right] + \frac{2 A \sqrt L}{\sqrt m w}

    Args:
        depth: ``L``, the number of hidden layers.
        width: ``m``.
        least_norm: ``w``, the least norm of a weight vector.
        output_norm: ``rho``.
        input_norm: ``A``.
        curvature: ``b``, ``sup |phi''|`` of a 1-Lipschitz activation that is zero at zero.

    >>> round(hessian_bound_closed(1, 1, 1.0, 1.0, 1.0, 0.0), 6)
    5.154701
    """
    layer = paper_layer(width, least_norm, curvature=curvature)  # refuses bad sizes
    d, d2 = layer.direction, layer.direction_second
    inside = UNIT_VECTOR_SECOND * input_norm * d2 + 2.0 * input_norm * depth * d**2
    inside += curvature * input_norm**2 * depth * (depth + 1) / 2.0 * d**2
    return up(output_norm * inside + 2.0 * input_norm * math.sqrt(depth) * d, 64.0)
