"""Theorem 15 of than2025: a network whose training loss has a prescribed gradient at one layer."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError, NonFiniteError
from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product
from normscope.papers.than2025.extremal.theorem_6_networks import (
    check_layer,
    checked_scales,
    checked_widths,
    linear,
    relu_network,
    scaled_identities,
)

Loss = Callable[[Tensor, Tensor], Tensor]
#: Logarithm below which an exponential is an ordinary float.
_LARGEST_LOG = 700.0


@dataclass(frozen=True)
class GradientExtremal:
    """A network with one output whose training loss has a known gradient at one layer."""

    module: nn.Sequential  #: ``g(W h_K(x))`` with ``W = c 1^T``
    layer: int  #: ``i``, from one
    factor: Value  #: ``c a_{i+1} ... a_K``, what makes the gradient explode or vanish.
    relative: Tensor  #: the gradient of the mean loss with respect to ``W_i``, divided by the factor
    parameter: str  #: the name of ``W_i`` in the module

    @property
    def gradient(self) -> Tensor:
        """Return the gradient itself; infinite or zero where floats end."""
        return _times_exp(self.relative, self.factor.log)

    @property
    def log_norm(self) -> float:
        """Return the logarithm of the Frobenius norm of the gradient, whatever its size; ``-inf`` for zero."""
        norm = float(torch.linalg.matrix_norm(self.relative))
        return -math.inf if norm == 0 else self.factor.log + math.log(norm)


@statement(
    "than2025", "Theorem 15", holds="off the kinks: W_it h_{i-1}(x) != 0; the indicator is of > 0, and t <= n_i too"
)
def theorem_15(
    widths: Sequence[int],
    scales: Sequence[float] | float,
    weight: Tensor,
    inputs: Tensor,
    targets: Tensor,
    loss: Loss,
    *,
    layer: int = 1,
    output: float = 1.0,
    activation: nn.Module | None = None,
) -> GradientExtremal:
    """Return a network with ``dL/dW_it = (c a_{i+1} ... a_K/m) sum_x 1[W_it h > 0] d(f o g)/du h^T``.

    There ``h = h_{i-1}(x)``, ``W_k = a_k I_k`` for ``k != i``, ``W_i`` is as given, and there is one output ``g(u)``
    with ``u = c sum_t h_K(x)_t``. Rows ``t > min(n_i, ..., n_K)`` have no gradient. Whether it explodes depends on
    ``d(f o g)/du`` at ``u``, which grows with the scales too: a saturating ``g`` makes it vanish instead.

    Args:
        widths: ``n_0, ..., n_K``, input first.
        scales: ``a_1, ..., a_K > 0``, or one number for all; that of the layer itself is not used.
        weight: ``W_i``.
        inputs: data, one row for each sample.
        targets: one for each sample.
        loss: ``f(prediction, target)``, differentiable, for the ``(m,)`` predictions without a mean.
        layer: ``i``, from one to ``K``.
        output: ``c > 0``.
        activation: ``g``, by default the identity.

    Returns:
        The network and its gradient, as a factor in the log domain and a tensor.

    Raises:
        InputError: if an argument is out of range.
        NonFiniteError: if the loss has no derivative at outputs this large.

    >>> net = theorem_15([2, 2, 3], 4.0, torch.eye(2), torch.ones(1, 2), torch.zeros(1), lambda p, y: p - y)
    >>> net.gradient.tolist(), round(net.factor.value, 12)
    ([[4.0, 4.0], [4.0, 4.0]], 4.0)
    """
    shape, dtype = checked_widths(widths), weight.dtype
    _check(shape, layer, weight, inputs, targets)
    held, c = checked_scales(scales, len(shape) - 1, dtype), float(torch.tensor(output, dtype=dtype))
    if min(held) <= 0 or not (math.isfinite(c) and c > 0):
        raise InputError("Expected positive scales and a positive output weight: with a zero the gradient vanishes.")
    g = nn.Identity() if activation is None else activation
    weights = scaled_identities(shape, held, dtype)
    weights[layer - 1] = weight.detach().clone()
    last = linear(torch.full((1, shape[-1]), c, dtype=dtype))
    module = nn.Sequential(*relu_network(weights), last, nn.Flatten(0), g)
    factor = product([Value.of(a, Kind.CERTIFIED, statement="than2025 Theorem 15") for a in (c, *held[layer:])])
    h = _reaching(shape, held, layer, inputs.detach().to(dtype))
    rows = min(shape[layer:])
    y = h @ weight.detach().T
    u = _times_exp(torch.relu(y[:, :rows]).sum(1), factor.log)
    slope = _slope(g, loss, u, targets)
    active = (y > 0).to(dtype)
    active[:, rows:] = 0
    relative = (active * slope[:, None]).T @ h / len(inputs)
    return GradientExtremal(module, layer, factor, relative, f"{2 * (layer - 1)}.weight")


def _check(shape: tuple[int, ...], layer: int, weight: Tensor, inputs: Tensor, targets: Tensor) -> None:
    """Raise unless layer, weight and data fit the widths."""
    check_layer(layer, len(shape) - 1)
    wanted = (shape[layer], shape[layer - 1])
    if tuple(weight.shape) != wanted:
        raise InputError(f"Expected a weight of shape {wanted} for layer {layer}, got {tuple(weight.shape)}.")
    if inputs.dim() != 2 or inputs.shape[1] != shape[0] or len(inputs) != len(targets) or len(inputs) == 0:
        raise InputError(
            f"Expected data as rows of {shape[0]} numbers with one target each, got {tuple(inputs.shape)}."
        )


def _reaching(shape: tuple[int, ...], scales: Sequence[float], layer: int, inputs: Tensor) -> Tensor:
    """Return ``h_{i-1}`` of all inputs: the first layer sees them as they are."""
    kept = min(shape[:layer])
    h = torch.zeros(len(inputs), shape[layer - 1], dtype=inputs.dtype)
    seen = inputs[:, :kept] if layer == 1 else torch.relu(inputs[:, :kept])
    h[:, :kept] = _times_exp(seen, math.fsum(math.log(a) for a in scales[: layer - 1]))
    if not bool(torch.isfinite(h).all()):
        raise NonFiniteError(f"The input of layer {layer} exceeds the range of floats. Use smaller scales before it.")
    return h


def _times_exp(x: Tensor, log: float) -> Tensor:
    """Return ``exp(log) x``, infinite where floats end; zero stays zero."""
    if abs(log) < _LARGEST_LOG:
        return x * math.exp(log)
    return torch.where(x == 0, x, torch.sign(x) * torch.exp(torch.log(x.abs()) + log))


def _slope(g: nn.Module, loss: Loss, u: Tensor, targets: Tensor) -> Tensor:
    """Return ``d(f o g)/du`` of each sample."""
    with torch.enable_grad():
        at = u.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(loss(g(at), targets).sum(), at)
    if not bool(torch.isfinite(slope).all()):
        raise NonFiniteError(
            f"The loss has no finite derivative at the output {float(u.abs().max()):g}. Use smaller "
            "scales, or a loss with bounded derivative."
        )
    return slope
