r"""Spectral normalization: ``W / sigma^``, and what the norm of a reshaped kernel says about a convolution.

PyTorch divides by ``sigma^ = u^T R v``, an estimate from below of the norm of the reshaped kernel ``R`` (outputs x
inputs * kernel). Two gaps remain: ``sigma^ <= ||R||``, and a convolution is not its reshaped kernel.
"""

import math
from collections.abc import Sequence

from torch import Tensor

from normscope.core.errors import InputError
from normscope.core.rounding import as_float64, matrix_norm_sandwich, up
from normscope.core.statement import statement
from normscope.graph.ir import Node, Ref
from normscope.graph.recognise import name_of
from normscope.operators.normalizer import Normalizer, Symmetry, of_the_weight
from normscope.operators.written_out import Surroundings


def reshaped_kernel(weight: Tensor, dim: int = 0) -> Tensor:
    """Return the weight as a float64 matrix with axis ``dim`` as rows: ``R`` of shape (outputs, inputs * kernel).

    >>> import torch
    >>> reshaped_kernel(torch.zeros(4, 3, 2, 2)).shape
    torch.Size([4, 12])
    """
    kernel = as_float64(weight, "weight")
    return kernel.reshape(1, -1) if kernel.ndim < 2 else kernel.movedim(dim, 0).flatten(1)


@statement("normscope", "Proposition SN-1")
def reshaped_kernel_norm(weight: Tensor, dim: int = 0) -> tuple[float, float]:
    """Return proved lower and upper bounds of ``||R||_2``, the norm of the reshaped kernel.

    For a dense layer this is the Lipschitz constant. For a convolution it is a lower bound of the constant (on an
    image that contains one whole window), never an upper bound on its own.

    >>> import torch
    >>> lower, upper = reshaped_kernel_norm(torch.ones(1, 1, 3, 3))
    >>> round(lower, 9), round(upper, 9)
    (3.0, 3.0)
    """
    return matrix_norm_sandwich(reshaped_kernel(weight, dim))


@statement("normscope", "Proposition SN-2", holds="zero padding, any image size")
def convolution_certificate(
    weight: Tensor, stride: int | Sequence[int] = 1, dilation: int | Sequence[int] = 1, groups: int = 1
) -> float:
    r"""Return ``sqrt(prod_j ceil(k_j gcd(s_j, d_j) / s_j)) ||R||``, an upper bound of the constant of a convolution.

    The convolution is ``R`` applied to each window. A pixel ``p`` lies in the windows ``o`` with ``s o + d j = p`` for
    some tap ``j < k``: at most ``ceil(k gcd(s, d) / s)`` taps per axis, so gathering windows has norm at most the root
    of their number. For stride 1 this is ``sqrt(k_h k_w) ||R||``, attained by a constant kernel on a large image.
    Spectral normalization therefore certifies ``sqrt(k_h k_w)``, not one. With groups, the largest over the groups.

    >>> import torch
    >>> round(convolution_certificate(torch.ones(1, 1, 3, 3).double() / 3), 9)
    3.0
    >>> round(convolution_certificate(torch.ones(1, 1, 2, 2) / 2, stride=2), 9)
    1.0
    """
    kernel = tuple(weight.shape[2:])
    if groups < 1 or weight.shape[0] % groups:
        raise InputError(f"{weight.shape[0]} output channels cannot be divided into {groups} groups.")
    strides = (stride,) * len(kernel) if isinstance(stride, int) else tuple(stride)
    dilations = (dilation,) * len(kernel) if isinstance(dilation, int) else tuple(dilation)
    windows = 1
    for k, s, d in zip(kernel, strides, dilations, strict=True):
        windows *= -(-k * math.gcd(s, d) // s)
    norm = max(reshaped_kernel_norm(part)[1] for part in weight.detach().chunk(groups))
    return up(math.sqrt(windows) * norm)


@statement("normscope", "Proposition SN-3")
def spectral_norm_constant(weight: Tensor, u: Tensor, v: Tensor, dim: int = 0) -> float:
    """Return ``||R|| / sigma^`` with ``sigma^ = u^T R v``: the norm that spectral normalization actually leaves.

    It is one when the power iteration has converged and above one before, since ``u^T R v <= ||R||`` for unit vectors.

    >>> import torch
    >>> W = torch.diag(torch.tensor([3.0, 1.0]))
    >>> round(spectral_norm_constant(W, torch.tensor([1.0, 0.0]), torch.tensor([1.0, 0.0])), 9)
    1.0
    """
    R = reshaped_kernel(weight, dim)
    left, right = as_float64(u, "u").reshape(-1), as_float64(v, "v").reshape(-1)
    sigma = abs(float(left @ (R @ right)))
    magnitude = float(left.abs() @ (R.abs() @ right.abs()))
    safe = sigma - 2.0 * sum(R.shape) * 2.0**-53 * magnitude
    return up(matrix_norm_sandwich(R)[1] / safe) if safe > 0 else math.inf


def _of_weight(node: Node, around: Surroundings) -> bool:
    """Return whether a node divides a weight by ``u . (W v)``, as torch's spectral normalization does."""
    if name_of(node) != "div" or len(node.args) < 2 or not isinstance(node.args[1], Ref):
        return False
    below = around.recogniser.through(node.args[1])
    return below is not None and name_of(below) in ("vdot", "dot")


NORMALIZER = Normalizer(
    kind="spectral_norm",
    formula="W = V/(u^T V v), with the vectors u and v of a power iteration",
    constants=of_the_weight,
    symmetry=Symmetry("layer"),
    of_weight=_of_weight,
)
