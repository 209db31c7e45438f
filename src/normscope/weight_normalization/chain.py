r"""Read a weight-normalized model as a chain of layers, with the constants of each that the bounds use.

Supported are networks that apply one module after another (``nn.Sequential``, nested or not): weight-normalized linear
layers and convolutions (:class:`~normscope.weight_normalization.network.UnitRowLinear`, ``torch.nn.utils.weight_norm``,
``torch.nn.utils.parametrizations.weight_norm``), activations, ``Flatten``, and a plain linear output. Anything else
raises an error with the reason.
"""

import copy
import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized

from normscope.core.errors import InputError
from normscope.core.rounding import UNIT, as_float64, matrix_norm_sandwich, up
from normscope.operators.normalizers.weight_norm import weight_norm_bounds
from normscope.weight_normalization.activation import IDENTITY, Activation, activation_of
from normscope.weight_normalization.derivative_bounds import LayerConstants
from normscope.weight_normalization.network import UnitRowLinear

#: Side from which the norm of a layer is bounded by its Frobenius norm, which costs nothing.
LARGEST_SVD = 1024
_SHAPELESS = (nn.Flatten, nn.Identity, nn.Dropout)


@dataclass(frozen=True)
class HiddenLayer:
    r"""One weight-normalized layer and the activation after it."""

    name: str  #: of the module
    directions: Tensor  #: ``v``, one row per output (a convolution's filters, flattened), in float64
    gains: Tensor  #: ``|g|``, one per row; ``1/sqrt(m)`` in the paper's form
    gains_trained: bool  #: whether the gains are parameters
    bias: Tensor | None  #: one per row, or ``None``
    positions: int  #: at how many places a filter is applied; 1 for a dense layer
    window: float  #: the root of the number of windows that hold one input element; 1 for a dense layer
    activation: Activation  #: what follows

    @property
    def units(self) -> int:
        """How many outputs the layer has."""
        return len(self.directions) * self.positions

    @property
    def row_norms(self) -> Tensor:
        """The norms of the weight vectors."""
        return torch.linalg.vector_norm(self.directions, dim=1)

    def constants(self, *, gradient_step: float = 0.0) -> LayerConstants:
        """Return the constants of the layer, valid after a step along a gradient of a length up to ``gradient_step``.

        Weight vectors move at right angles to themselves along their gradients, so that none gets shorter.
        """
        norms = self.row_norms * (1.0 - 64.0 * UNIT)
        if not bool((norms > 0).all()):
            raise InputError(f"{self.name}: a weight vector is zero, where the network is undefined.")
        gains = self.gains + (gradient_step if self.gains_trained else 0.0)
        shaken = float((gains / norms).max()) * gradient_step + (gradient_step if self.gains_trained else 0.0)
        norm = up(float(torch.linalg.vector_norm(gains)), 16.0 + len(gains))  # the Frobenius norm
        if min(self.directions.shape) <= LARGEST_SVD:
            norm = min(norm, weight_norm_bounds(self.directions, self.gains).upper + shaken)
        bias = 0.0 if self.bias is None else float(torch.linalg.vector_norm(self.bias)) + gradient_step
        spread = math.sqrt(self.positions)
        return LayerConstants(
            norm=up(self.window * norm),
            direction=up(self.window * float((gains / norms).max())),
            direction_second=up(self.window * float((gains / norms**2).max())),
            slope=self.activation.slope,
            curvature=self.activation.curvature,
            gain=self.window if self.gains_trained else 0.0,
            gain_direction=up(self.window / float(norms.min())) if self.gains_trained else 0.0,
            bias=0.0 if self.bias is None else spread,
            shift=up(bias * spread, 64.0),
            offset=up(self.activation.at_zero * math.sqrt(self.units)),
        )

    def peeling_factor(self) -> float:
        r"""Return :math:`a \sqrt{m} \max_i |g_i|`, the factor of the layer in the Rademacher bound."""
        return up(self.activation.slope * math.sqrt(len(self.gains)) * float(self.gains.max()), 16.0)


@dataclass(frozen=True)
class Chain:
    """A weight-normalized network as a chain of layers."""

    layers: tuple[HiddenLayer, ...]  #: the hidden ones, first to last
    output: Tensor = field(repr=False)  #: the matrix of the output layer, in float64
    output_bias: bool = False  #: whether the output layer has a bias

    @property
    def depth(self) -> int:
        """How many hidden layers there are."""
        return len(self.layers)

    @property
    def least_norm(self) -> float:
        """The least norm of a weight vector over all hidden layers."""
        return min(float(layer.row_norms.min()) for layer in self.layers)

    @property
    def paper_form(self) -> bool:
        r"""Whether it is the paper's own network: gains ``1/sqrt(m)``, no bias, dense, 1-Lipschitz, ``phi(0) = 0``."""
        return not self.output_bias and all(
            layer.bias is None
            and not layer.gains_trained
            and layer.window == 1.0
            and layer.activation.slope <= 1.0
            and layer.activation.at_zero == 0.0
            and bool((layer.gains * math.sqrt(len(layer.gains)) <= 1.0 + 1e-12).all())
            for layer in self.layers
        )

    def output_norm(self, *, moved: float = 0.0) -> float:
        """Return an upper bound of the norm of the output layer within a distance ``moved``."""
        return up(matrix_norm_sandwich(self.output)[1] + moved)

    def constants(self, *, gradient_step: float = 0.0) -> list[LayerConstants]:
        """Return the constants of every hidden layer, valid after a step along a gradient up to that length."""
        return [layer.constants(gradient_step=gradient_step) for layer in self.layers]


def in_float64(model: nn.Module) -> nn.Module:
    """Return a copy of a model in float64 on the CPU.

    >>> next(in_float64(nn.Linear(1, 1)).parameters()).dtype
    torch.float64
    """
    held = [value for module in model.modules() for value in vars(module).values() if isinstance(value, Tensor)]
    computed = {id(value): value.detach().clone() for value in held if not value.is_leaf}
    return copy.deepcopy(model, computed).to(device="cpu", dtype=torch.float64)


def read_chain(model: nn.Module, example: Tensor) -> Chain:
    """Return a model as a chain of weight-normalized layers.

    Args:
        model: applies its modules one after another; it is not changed.
        example: inputs, for the sizes of images.

    Raises:
        InputError: if the model has another structure; the message names the module and says why.

    >>> from normscope.weight_normalization.network import WeightNormNetwork
    >>> chain = read_chain(WeightNormNetwork(3, width=5, depth=2), torch.zeros(1, 3))
    >>> chain.depth, chain.paper_form
    (2, True)
    """
    steps = list(_flat(in_float64(model)))
    linear = [k for k, (_, module) in enumerate(steps) if isinstance(module, _LINEAR)]
    if len(linear) < 2:
        raise InputError("Expected at least one weight-normalized hidden layer and an output layer.")
    if _normalized(steps[linear[-1]][1]) is not None:
        raise InputError(
            f"{steps[linear[-1]][0]}: the output layer is weight-normalized. The theory needs a plain one."
        )
    if any(activation_of(module) not in (None, IDENTITY) for _, module in steps[linear[-1] + 1 :]):
        raise InputError("The theory needs a linear output; an activation follows the last layer.")
    shapes = _shapes(steps, example.detach().to(device="cpu", dtype=torch.float64))
    layers = [_hidden(steps, at, following, shapes[at]) for at, following in itertools.pairwise(linear)]
    last = steps[linear[-1]][1]
    if not isinstance(last, nn.Linear):
        raise InputError(f"{steps[linear[-1]][0]}: expected a linear output layer, got {type(last).__name__}.")
    return Chain(tuple(layers), as_float64(last.weight, "the output layer"), last.bias is not None)


_LINEAR = (UnitRowLinear, nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)


def _flat(module: nn.Module, name: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules of nested sequentials in the order in which they run."""
    if isinstance(module, nn.Sequential):
        for key, child in module.named_children():
            yield from _flat(child, f"{name}.{key}" if name else key)
        return
    known = isinstance(module, (*_LINEAR, *_SHAPELESS)) or activation_of(module) is not None
    if not known:
        where = name or "the model"
        raise InputError(
            f"{where}: {type(module).__name__} is not covered by the theory of weight normalization. "
            "Expected an nn.Sequential of weight-normalized layers and activations that ends with a "
            "linear layer."
        )
    if isinstance(module, nn.Dropout) and module.training and module.p > 0:
        raise InputError(f"{name}: dropout is active. Call model.eval() first.")
    yield name, module


def _shapes(steps: list[tuple[str, nn.Module]], example: Tensor) -> list[torch.Size]:
    """Return the shape of the output of every module for one example."""
    shapes = []
    with torch.no_grad():
        x = example[:1]
        for name, module in steps:
            try:
                x = module(x)
            except (RuntimeError, ValueError, TypeError) as error:
                raise InputError(f"{name}: inputs of shape {tuple(example.shape)} do not fit: {error}") from None
            shapes.append(x.shape)
    return shapes


def _normalized(module: nn.Module) -> tuple[Tensor, Tensor, bool] | None:
    """Return directions, gains and whether gains are trained, of a weight-normalized module; ``None`` for others."""
    if isinstance(module, UnitRowLinear):
        rows = as_float64(module.weight, "the weight")
        gains = torch.full((len(rows),), 1.0 / math.sqrt(len(rows)), dtype=torch.float64)
        return (rows, gains, False) if module.normalize else None
    if is_parametrized(module, "weight"):
        gain, direction = "parametrizations.weight.original0", "parametrizations.weight.original1"
    else:
        gain, direction = "weight_g", "weight_v"
    named = dict(module.named_parameters())
    if gain in named and direction in named:
        rows = as_float64(named[direction], "the directions").flatten(1)
        gains = as_float64(named[gain], "the gains").reshape(-1)
        if len(gains) != len(rows):
            raise InputError("Expected weight_norm with dim=0, one gain per output.")
        return rows, gains.abs(), named[gain].requires_grad
    return None


def _hidden(steps: list[tuple[str, nn.Module]], at: int, following: int, shape: torch.Size) -> HiddenLayer:
    name, module = steps[at]
    parts = _normalized(module)
    if parts is None:
        raise InputError(f"{name}: the hidden layer is not weight-normalized.")
    between = [
        found for _, other in steps[at + 1 : following] if (found := activation_of(other)) not in (None, IDENTITY)
    ]
    if len(between) > 1:
        raise InputError(f"{name}: two activations follow it. Expected at most one.")
    directions, gains, trained = parts
    bias = getattr(module, "bias", None)
    window = 1
    if isinstance(module, nn.Conv1d | nn.Conv2d | nn.Conv3d):
        if module.padding_mode != "zeros":
            raise InputError(f"{name}: expected zero padding, got {module.padding_mode!r}.")
        window = _overlap(module)
    elif len(shape) != 2:
        raise InputError(f"{name}: expected inputs of shape (batch, features) for a dense layer.")
    return HiddenLayer(
        name,
        directions,
        gains,
        trained,
        None if bias is None else as_float64(bias, "the bias"),
        math.prod(shape[2:]),
        up(math.sqrt(window)) if window > 1 else 1.0,
        between[0] if between else IDENTITY,
    )


def _overlap(module: nn.Conv1d | nn.Conv2d | nn.Conv3d) -> int:
    """Return in how many windows one input element lies at most."""
    axes = zip(module.kernel_size, module.stride, module.dilation, strict=True)
    return math.prod(math.ceil(kernel * math.gcd(stride, dilation) / stride) for kernel, stride, dilation in axes)
