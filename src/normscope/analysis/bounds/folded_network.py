"""A network with every BatchNorm folded into its weights: its path norm, and its error with noisy weights."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from normscope.analysis.bounds.result import RefusedError
from normscope.generalization.pac_bayes import gaussian_divergence
from normscope.graph.capture import Captured
from normscope.graph.interpreter import run
from normscope.graph.ir import Node, Ref

#: Noise relative to the root mean square of a tensor that is tried, the largest first.
LEVELS = (0.5, 0.3, 0.2, 0.1, 0.05, 0.02)
#: Draws of the noise, and samples per draw, which no other draw uses.
DRAWS, EACH = 60, 32
#: Steps of the search for the worst change.
ASCENT = 10
#: Operations that neither subtract nor saturate: with non-negative weights they sum over paths.
_ADDITIVE = {
    "conv1d", "conv2d", "conv3d", "convolution", "linear", "addmm", "matmul", "mm", "relu", "relu_", "add", "add_",
    "mean", "avg_pool1d", "avg_pool2d", "avg_pool3d", "adaptive_avg_pool1d", "adaptive_avg_pool2d", "view", "reshape",
    "flatten", "batch_norm", "_native_batch_norm_legit_no_training", "native_batch_norm", "cudnn_batch_norm", "slice",
    "pad", "constant_pad_nd", "permute", "transpose", "t", "unsqueeze", "squeeze", "contiguous", "clone", "detach",
    "dropout", "cat", "_unsafe_view", "_to_copy", "to", "select", "alias", "sym_size",
}  # fmt: skip


class FoldedNetwork:
    """The tensors of a graph with every BatchNorm folded.

    ``gamma (W x + b - mu)/sigma + beta`` becomes ``(gamma/sigma) W x + (gamma (b - mu)/sigma + beta)``: a scale of one,
    the mean zero, the variance ``1 - eps``. Where no layer of its own comes before, scale and shift stay where they
    are. Two parametrizations of one normalized layer give the same tensors.

    Attributes:
        captured: the network.
        tensors: all tensors, in float64.
        constants: names of those that folding made constant.
        weights: the floating-point tensors among the others.
        fixed: all tensors in the precision of the network.
    """

    def __init__(self, captured: Captured) -> None:
        self.captured, dtype = captured, captured.example[0].dtype
        self.tensors, self.constants = _folded(captured)
        floating = {n: t for n, t in self.tensors.items() if t.is_floating_point()}
        self.weights = {n: t for n, t in floating.items() if n not in self.constants}
        self.fixed = self.tensors | {n: t.to(dtype) for n, t in floating.items()}

    def scores(self, inputs: Tensor, changed: Mapping[str, Tensor]) -> Tensor:
        """Return the scores of the network with some of its tensors changed."""
        dtype = self.captured.example[0].dtype
        changed = {name: tensor.to(dtype) for name, tensor in changed.items()}
        return run(self.captured.graph, self.fixed | changed, [inputs.to(dtype)])[0]

    def error(self, inputs: Tensor, labels: Tensor, changed: Mapping[str, Tensor]) -> float:
        """Return the classification error with some tensors of the network changed."""
        with torch.no_grad():
            return float((self.scores(inputs, changed).argmax(1) != labels).double().mean())

    def gradient(self, inputs: Tensor, labels: Tensor, at: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the gradient of the cross-entropy with respect to some tensors, at given values."""
        leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in at.items()}
        with torch.enable_grad():
            loss = functional.cross_entropy(self.scores(inputs, leaves), labels)
        slopes = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True, materialize_grads=True)
        return dict(zip(leaves, slopes, strict=True))


def _folded(captured: Captured) -> tuple[dict[str, Tensor], list[str]]:
    """Return the folded tensors, and the names of those that folding made constant."""
    tensors = {name: t.detach().double() if t.is_floating_point() else t for name, t in captured.tensors.items()}
    constants: list[str] = []
    users = captured.graph.users()
    for node in captured.graph:
        if "batch_norm" not in node.op or "aten." not in node.op:
            continue
        weight, bias, mean, var = (_target(captured, a) for a in node.args[1:5])
        layer = _layer_before(captured, users, node)
        if not (mean and var) or not (bias or (layer and layer[1])) or not (weight or layer):
            raise RefusedError(f"BatchNorm {node.owner} has no scale, shift or running statistics of its own")
        eps = next(float(a) for a in reversed(node.args) if isinstance(a, float))
        sigma = (tensors[var] + eps).sqrt()
        scale = (tensors[weight] if weight else torch.ones_like(sigma)) / sigma
        shift = (tensors[bias] if bias else torch.zeros_like(sigma)) - scale * tensors[mean]
        if layer is not None:
            matrix, offset = layer
            tensors[matrix] = tensors[matrix] * scale.reshape(-1, *[1] * (tensors[matrix].ndim - 1))
            shift = shift + scale * tensors[offset] if offset else shift
            scale = torch.ones_like(sigma)
            constants += [weight] if weight else []
            if offset:
                tensors[offset] = torch.zeros_like(sigma) if bias else shift
                constants += [offset] if bias else []
        tensors |= ({weight: scale} if weight else {}) | ({bias: shift} if bias else {})
        tensors[mean], tensors[var] = torch.zeros_like(sigma), torch.full_like(sigma, 1.0 - eps)
        constants += [mean, var]
    return tensors, constants


def _target(captured: Captured, argument: object) -> str:
    """Return the name of the tensor that an argument refers to, or an empty text."""
    return captured.graph[argument.name].target if isinstance(argument, Ref) else ""


def _layer_before(captured: Captured, users: Mapping[str, list[str]], norm: Node) -> tuple[str, str] | None:
    """Return weight and bias of the layer that a BatchNorm follows, if both are used there alone."""
    before = captured.graph[norm.args[0].name] if isinstance(norm.args[0], Ref) else norm
    name = before.op.split(".")[1] if "." in before.op else ""
    plain = name in ("conv1d", "conv2d", "conv3d") or (name == "linear" and len(before.shape or ()) == 2)
    if not plain or users[before.name] != [norm.name]:
        return None
    sources = [a for a in before.args[1:3] if isinstance(a, Ref)]
    names = [_target(captured, a) for a in sources]
    shared = [n.target for n in captured.graph if n.target in names]
    if not names or not all(names) or len(shared) != len(names) or any(len(users[a.name]) != 1 for a in sources):
        return None
    return names[0], names[1] if len(names) > 1 else ""


def log_path_norm(folded: FoldedNetwork) -> float:
    """Return the logarithm of the L1 path norm, biases counted as paths from a constant one.

    One run with the absolute values of all weights on an input of ones.
    """
    captured = folded.captured
    for node in captured.graph.calls():
        name = node.op.split(".")[1] if "." in node.op else node.op
        factor = dict(node.kwargs).get("alpha", 1)  # of the second summand
        if name not in _ADDITIVE or (isinstance(factor, int | float) and factor < 0):
            raise RefusedError(f"{name} in {node.owner or 'the model'} is not a sum over paths")
    positive = folded.tensors | {n: t.abs() for n, t in folded.weights.items()}
    ones = [torch.ones_like(t[:1], dtype=torch.float64) for t in captured.example]
    with torch.no_grad():
        total = float(run(captured.graph, positive, ones, dtype=torch.float64)[0].sum())
    return math.log(total) if total > 0 else -math.inf


@dataclass(frozen=True)
class NoisePosterior:
    """A Gaussian around the weights, BatchNorm folded."""

    level: float  #: noise relative to the root mean square of each tensor
    divergence: float  #: from the prior, per tensor a Gaussian around zero
    price: float  #: of choosing the prior's spreads and the level
    loss: float  #: mean error over draws of the noise and of samples
    draws: int  #: how many


def noise_posterior(folded: FoldedNetwork, inputs: Tensor, labels: Tensor, error: float, seed: int) -> NoisePosterior:
    """Return the posterior with the most noise that costs few errors, and its divergence.

    Noise in proportion to the size of each folded tensor makes the divergence invariant under rescalings.

    Inputs are random training samples in random order.
    """
    source = torch.Generator().manual_seed(seed)
    level = LEVELS[-1]
    for level in LEVELS:
        if _noisy(folded, inputs, labels, level, source, 4) <= error + 0.1:
            break
    loss = _noisy(folded, inputs, labels, level, source, DRAWS)
    blocks = _blocks(folded)
    sizes = [t.numel() for t in blocks.values()]
    distances = [float(t.norm()) for t in blocks.values()]
    noises = [level * r / math.sqrt(n) for n, r in zip(sizes, distances, strict=True)]
    divergence, price = gaussian_divergence(sizes, distances, noises)
    return NoisePosterior(level, divergence, price + math.log(len(LEVELS)), loss, DRAWS)


def error_with_noise(
    folded: FoldedNetwork, inputs: Tensor, labels: Tensor, level: float, seed: int, *, relative: bool = True
) -> float:
    """Return the error with noise in the folded weights, relative to each tensor or not: a mean over a few draws."""
    return _noisy(folded, inputs, labels, level, torch.Generator().manual_seed(seed), 10, relative=relative)


def error_at_worst(
    folded: FoldedNetwork, inputs: Tensor, labels: Tensor, level: float, seed: int, *, relative: bool = True
) -> float:
    """Return the error at the worst change found of the folded weights, no entry by more than a level.

    A few steps along the sign of the gradient of the cross-entropy, from zero: the one found is attained, but the worst
    may be worse.
    """
    some, right = inputs[: DRAWS * EACH // 4], labels[: DRAWS * EACH // 4]
    radius = {n: _scale(t, level, relative) for n, t in _blocks(folded).items()}
    start = {n: folded.fixed[n] for n in radius}
    moved = {n: torch.zeros_like(t) for n, t in start.items()}
    for _ in range(ASCENT):
        slopes = folded.gradient(some, right, {n: start[n] + d for n, d in moved.items()})
        for n, r in radius.items():
            moved[n] = (moved[n] + 2.5 / ASCENT * r * slopes[n].sign()).clamp(-r, r)
    return folded.error(some, right, {n: start[n] + d for n, d in moved.items()})


def _blocks(folded: FoldedNetwork) -> dict[str, Tensor]:
    """Return the folded tensors that noise is added to."""
    return {n: t for n, t in folded.weights.items() if float(t.norm()) > 0}


def _scale(tensor: Tensor, level: float, relative: bool) -> float:
    """Return a level of noise, relative to the root mean square of a tensor or not."""
    return level * (float(tensor.norm()) / math.sqrt(tensor.numel()) if relative else 1.0)


def _noisy(
    folded: FoldedNetwork, inputs: Tensor, labels: Tensor, level: float, source: torch.Generator, draws: int, *,
    relative: bool = True,
) -> float:  # fmt: skip
    """Return the mean over draws of the error on a part of the samples, a new part for each draw."""
    scales = {n: _scale(t, level, relative) for n, t in _blocks(folded).items()}
    own = len(inputs) >= DRAWS * EACH  # else all samples there are: then every draw takes some at random
    errors = []
    for draw in range(draws):
        moved = {}
        for name, scale in scales.items():
            tensor = folded.weights[name]
            moved[name] = tensor + scale * torch.randn(tensor.shape, generator=source, dtype=torch.float64)
        chosen = torch.randint(len(inputs), (EACH,), generator=source)
        if own:
            chosen = torch.arange(draw * EACH, (draw + 1) * EACH)
        errors.append(folded.error(inputs[chosen], labels[chosen], moved))
    return math.fsum(errors) / draws
