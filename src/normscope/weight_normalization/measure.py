r"""Measure the quantities that the theory bounds: norms of activations, Jacobians and Hessians of a model, in float64.

Nothing here uses the structure of weight normalization, so a bound that is compared with these numbers can fail.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call

from normscope.core.environment import quiet_vmap
from normscope.core.errors import InputError
from normscope.core.rounding import UNIT
from normscope.graph.second_derivatives import twice_differentiable
from normscope.linalg.thick_restart import eigenpairs
from normscope.operators.linear_map import pulled
from normscope.weight_normalization.chain import Chain

#: Below this many parameters matrices are formed and decomposed.
DENSE = 400

Scalar = Callable[[dict[str, Tensor]], Tensor]


def activation_norms(chain: Chain, model: nn.Module, inputs: Tensor) -> list[float]:
    r"""Return the largest norms of input and hidden activations over the inputs, rounding included.

    The float64 pass errs by at most :math:`e_l = a (t\, e_{l-1} + (d + 8) u \|W\|_F (s_{l-1} + e_{l-1})) + 8 u s_l`;
    ``d`` is the fan-in. That is added.

    >>> from normscope.weight_normalization.chain import in_float64, read_chain
    >>> from normscope.weight_normalization.network import WeightNormNetwork
    >>> net, x = WeightNormNetwork(3, width=5, depth=2), torch.ones(1, 3)
    >>> norms = activation_norms(read_chain(net, x), in_float64(net), x)
    >>> len(norms), bool(norms[2] <= norms[0])
    (3, True)
    """
    sizes: list[float] = []
    modules = dict(model.named_modules())
    handles = [
        modules[layer.name].register_forward_pre_hook(lambda _, args: sizes.append(_largest(args[0])))
        for layer in chain.layers
    ]
    last = [module for module in model.modules() if isinstance(module, nn.Linear)][-1]
    handles.append(last.register_forward_pre_hook(lambda _, args: sizes.append(_largest(args[0]))))
    try:
        with torch.no_grad():
            model(inputs.double())
    finally:
        for handle in handles:
            handle.remove()
    error, widened = 0.0, [sizes[0] * (1.0 + 1e-12)]
    for k, (layer, constants) in enumerate(zip(chain.layers, chain.constants(), strict=True)):
        fan_in = layer.directions.shape[1]
        frobenius = layer.window * float(torch.linalg.vector_norm(layer.gains))
        fresh = (fan_in + 8.0) * UNIT * (frobenius * (sizes[k] + error) + constants.shift)
        error = constants.slope * (constants.norm * error + fresh) + 8.0 * UNIT * (sizes[k + 1] + constants.offset)
        widened.append(sizes[k + 1] * (1.0 + 1e-12) + error)
    return widened


def _largest(x: Tensor) -> float:
    return float(torch.linalg.vector_norm(x.flatten(1), dim=1).max())


def square_targets(targets: Tensor, outputs: int) -> Tensor:
    """Return targets of the square loss in float64: class numbers become rows with a single one.

    >>> square_targets(torch.tensor([1, 0]), 3)
    tensor([[0., 1., 0.],
            [1., 0., 0.]], dtype=torch.float64)
    """
    if targets.is_floating_point() or targets.ndim != 1:
        return targets.detach().double()
    least, largest = (int(v) for v in targets.aminmax()) if targets.numel() else (0, 0)
    if least < 0 or largest >= outputs:
        raise InputError(f"Expected class numbers from 0 to {outputs - 1}, got {least} to {largest}.")
    return nn.functional.one_hot(targets.long(), outputs).double()


def parameter_jacobian_norm(model: nn.Module, x: Tensor) -> float:
    """Return the norm of the Jacobian of one prediction in all parameters, from its rows."""
    parameters = [p for p in model.parameters() if p.requires_grad]
    outputs = model(x[None])[0].reshape(-1)
    rows = pulled(outputs, parameters, torch.eye(len(outputs), dtype=outputs.dtype))
    return float(torch.linalg.matrix_norm(torch.cat(rows, 1), ord=2))


def input_jacobian_norm(model: nn.Module, x: Tensor) -> float:
    """Return the norm of the Jacobian of one prediction in its input."""
    with quiet_vmap():
        jacobian = torch.func.jacrev(lambda one: model(one[None])[0].reshape(-1))(x)
    return float(torch.linalg.matrix_norm(jacobian.detach().flatten(1), ord=2))


def prediction_hessian_norm(model: nn.Module, x: Tensor, output: int = 0) -> float:
    """Return the largest absolute eigenvalue of the Hessian of one output at one input, in all parameters."""
    return hessian_norm(model, lambda p: functional_call(model, p, (x[None],))[0].reshape(-1)[output])


def loss_hessian_norm(model: nn.Module, inputs: Tensor, targets: Tensor) -> float:
    """Return the largest absolute eigenvalue of the Hessian of the mean square loss, in all parameters."""
    return hessian_norm(model, lambda p: square_loss(functional_call(model, p, (inputs,)), targets))


def square_loss(predictions: Tensor, targets: Tensor) -> Tensor:
    r"""Return the mean over examples of the squared distance :math:`\|y - f\|^2`.

    >>> float(square_loss(torch.zeros(2, 1), torch.tensor([[1.0], [3.0]])))
    5.0
    """
    return (predictions - targets).flatten(1).square().sum(dim=1).mean()


def loss_and_gradient_norm(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return the mean square loss and the norm of its gradient in all parameters.

    Raises:
        InputError: if the targets do not have the shape of the predictions.

    >>> loss_and_gradient_norm(nn.Linear(1, 1, bias=False), torch.zeros(1, 1), torch.ones(1, 1))
    (1.0, 0.0)
    """
    predictions = model(inputs)
    if predictions.shape != targets.shape:
        raise InputError(f"Expected targets of shape {tuple(predictions.shape)}, got {tuple(targets.shape)}.")
    loss = square_loss(predictions, targets)
    parameters = [p for p in model.parameters() if p.requires_grad]
    slopes = torch.autograd.grad(loss, parameters, allow_unused=True, materialize_grads=True)
    return loss.item(), math.sqrt(sum(g.square().sum().item() for g in slopes))


def hessian_norm(model: nn.Module, scalar: Scalar) -> float:
    """Return the largest absolute eigenvalue of a scalar of the parameters, by double backward.

    Small problems are solved densely. Larger ones by Lanczos with the tolerance 1e-8: the value is then attained from
    below, up to that tolerance; not a number if the search did not converge.
    """
    leaves = {name: p.detach().clone().requires_grad_() for name, p in model.named_parameters() if p.requires_grad}
    values = list(leaves.values())
    with twice_differentiable(model):
        loss = scalar(leaves)
    first = torch.autograd.grad(loss, values, create_graph=True, allow_unused=True, materialize_grads=True)
    flat = torch.cat([g.reshape(-1) for g in first])
    if not flat.requires_grad:
        return 0.0

    def products(vectors: Tensor) -> Tensor:
        return torch.cat(pulled(flat, values, vectors), 1)

    if flat.numel() <= DENSE:
        matrix = products(torch.eye(flat.numel(), dtype=flat.dtype))
        return float(torch.linalg.eigvalsh((matrix + matrix.mT) / 2.0).abs().max())
    start = torch.randn(flat.numel(), generator=torch.Generator().manual_seed(0), dtype=flat.dtype)
    many = 10 * flat.numel()
    found = eigenpairs(lambda v: products(v[None])[0], start, largest=1, smallest=1, tolerance=1e-8, max_products=many)
    largest = int(abs(found.values).argmax())
    return float(abs(found.values[largest])) if found.converged[largest] else math.nan
