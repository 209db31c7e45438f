r"""Inner products of the rows of :math:`S^{1/2} J`, layer by layer: the rows are never all in memory at once."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from normscope.curvature.outputs import OutputHessianRoot, root_of, rows_of
from normscope.curvature.problem import LossTerm, ParameterBlock, Problem, blocks_of
from normscope.curvature.products import Products, jacobian_product

#: Entries of the rows that are kept in memory at once.
HELD = 2**27
#: Rows per block of the matrix product.
TOGETHER = 512
#: Tolerance for the test that a gradient is an outer product, in square roots of the unit roundoff.
OUTER = 0.05


@dataclass(frozen=True)
class Gram:
    r"""The matrix :math:`S^{1/2} J J^T S^{1/2}`, with the cost of computing it.

    Its eigenvalues that are not zero are those of the Gauss-Newton matrix :math:`J^T S J`.
    """

    products: Products  #: of the Gauss-Newton matrix
    roots: tuple[OutputHessianRoot, ...]  #: of the Hessian of the loss in the outputs, one per term
    layers: tuple[LinearLayer, ...]  #: weights whose gradients are outer products, with their biases

    @property
    def count(self) -> int:
        """Return the size of the matrix."""
        return sum(root.count for root in self.roots)

    @property
    def entries(self) -> int:
        """Return the number of parameters whose rows must be computed."""
        return self.products.dimension - sum(layer.entries for layer in self.layers)

    @property
    def bytes(self) -> float:
        """Return the memory needed: three such matrices, gradients at layers, and the rows in memory at once."""
        gradients = sum(layer.weight.shape[0] for layer in self.layers)
        return 8.0 * (3 * self.count**2 + self.count * gradients + 2 * min(HELD, self.count * self.entries))

    @property
    def work(self) -> float:
        """Return the number of multiplications for inner products and eigenvalues."""
        thin = sum(sum(layer.weight.shape) for layer in self.layers)
        return float(self.count**2 * (self.entries / 2 + thin + 2 * self.count))

    def matrix(self) -> Tensor:
        r"""Return the matrix, in float64.

        The gradient of output ``c`` of sample ``n`` in the weight of a linear layer is :math:`g_{nc} a_n^T` with its
        input :math:`a_n`, so the layer adds :math:`(a_n^T a_m + 1)\, g_{nc}^T g_{md}`, where the 1 stands for the bias.
        Other parameters add the inner products of their rows, as many columns at a time as fit.
        """
        total = torch.zeros(self.count, self.count, dtype=torch.float64, device=self.products.problem.device)
        problem = self.products.problem
        terms = zip(problem.terms, self.roots, strict=True) if self.layers else ()
        for layer, *factors in zip(self.layers, *(self._factors(term, root) for term, root in terms), strict=True):
            total += _outer(factors, one=layer.bias is not None)
        known = {name for layer in self.layers for name in (layer.weight.name, layer.bias and layer.bias.name)}
        for part in _parts([block for block in problem.blocks if block.name not in known], HELD // self.count):
            rows = self._rows(RestrictedProblem(problem, part))
            for at in range(0, self.count, TOGETHER):  # half of a symmetric matrix
                total[at:, at : at + TOGETHER].addmm_(rows[at:], rows[at : at + TOGETHER].mT)
        return total.tril() + total.tril(-1).mT

    def _factors(self, term: LossTerm, root: OutputHessianRoot) -> list[tuple[Tensor, Tensor]]:
        """Return the inputs and the gradients at the output of each layer in one term."""
        calls, scores = _recorded(self.products.problem, term)
        used = [calls[layer.weight.name][0] for layer in self.layers]
        shifts = [call.shift for call in used]
        slopes = [
            torch.autograd.grad(scores, shifts, root.values[:, :, k].reshape(scores.shape), retain_graph=True)
            for k in range(root.values.shape[2])
        ]
        share = math.sqrt(term.share)
        return [(call.x, share * torch.stack(parts, 1)) for call, *parts in zip(used, *slopes, strict=True)]

    def _rows(self, problem: Problem) -> Tensor:
        """Return the rows of all terms in some columns."""
        rows = torch.empty(self.count, problem.dimension, dtype=torch.float64, device=problem.device)
        at = 0
        for term, root in zip(problem.terms, self.roots, strict=True):
            own = rows[at : at + root.count]
            rows_of(problem, term, root, own)
            own *= math.sqrt(term.share)
            at += root.count
        return rows

    def pushed(self, vectors: Iterable[Tensor]) -> Tensor:
        r"""Return :math:`S^{1/2} J q` of vectors of all parameters, one per column."""
        problem, factors = self.products.problem, []
        for term, root in zip(problem.terms, self.roots, strict=True):
            leaves = problem.leaves()
            scores = problem.prediction(problem.outputs(leaves, term))
            pushed = jacobian_product(problem, list(leaves.values()), scores)
            factors.append((pushed, math.sqrt(term.share) * root.values))

        def column(v: Tensor) -> Tensor:
            parts = [torch.einsum("nok,no->nk", root, pushed(v).reshape(root.shape[:2])) for pushed, root in factors]
            return torch.cat([part.reshape(-1) for part in parts])

        return torch.stack([column(v) for v in vectors], 1)


def gram_of(products: Products) -> Gram | None:
    """Prepare the matrix of inner products, so that its cost is known before it is computed.

    Args:
        products: of the Gauss-Newton matrix.

    Returns:
        None where the loss is not a sum over samples, or not convex in their outputs.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> with Problem(model, (torch.eye(2), torch.zeros(2, 1))) as problem:
    ...     found = gram_of(Products(problem, "ggn"))
    ...     found.entries, found.matrix().tolist()
    (0, [[1.0, 0.0], [0.0, 1.0]])
    """
    problem, roots = products.problem, []
    for term in problem.terms:
        root = root_of(products, term)
        if root is None:
            return None
        roots.append(root)
    blocks = {block.name: block for block in problem.blocks}
    tested = [_outer_products(problem, term, len(root.scores)) for term, root in zip(problem.terms, roots, strict=True)]
    everywhere = [pair for pair in tested[0].items() if all(pair in found.items() for found in tested)]
    layers = [LinearLayer(blocks[name], blocks[bias] if bias else None) for name, bias in everywhere]
    return Gram(products, tuple(roots), tuple(layers))


@dataclass(frozen=True)
class LinearLayer:
    """A linear layer that is applied once to each sample."""

    weight: ParameterBlock  #: its weight
    bias: ParameterBlock | None  #: its bias, if that is a chosen parameter

    @property
    def entries(self) -> int:
        """Return the number of its parameters."""
        return self.weight.shape.numel() + (self.bias.shape.numel() if self.bias else 0)


class RestrictedProblem(Problem):
    """A problem in which only some slices of the parameters vary.

    Args:
        whole: the problem, entered as a context.
        pieces: the parameters, with a slice of the flattened entries of each.
    """

    def __init__(self, whole: Problem, pieces: Sequence[tuple[ParameterBlock, slice]]) -> None:
        vars(self).update(vars(whole))
        self._whole, self._pieces = whole, {block.name: place for block, place in pieces}
        self._values = {name: whole._values[name].reshape(-1)[place] for name, place in self._pieces.items()}
        self.blocks = tuple(blocks_of(self._values))
        self.dimension = self.blocks[-1].place.stop

    def outputs(self, parameters: Mapping[str, Tensor], term: LossTerm) -> Any:
        """Run the model with these slices in place of its own."""
        whole = {}
        for name, piece in parameters.items():
            value, place = self._whole._values[name].detach(), self._pieces[name]
            flat = value.reshape(-1)
            whole[name] = torch.cat([flat[: place.start], piece, flat[place.stop :]]).view(value.shape)
        return self._whole.outputs(whole, term)


@dataclass(frozen=True)
class _Call:
    """One call of a linear layer: its input, what is added to its output, and the name of its bias."""

    x: Tensor
    shift: Tensor
    bias: str | None


class _Recording(TorchFunctionMode):
    """A context that records calls of linear layers, and adds a zero leaf to their outputs for differentiation."""

    def __init__(self, leaves: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.names = {id(leaf): name for name, leaf in leaves.items()}
        self.calls: dict[str, list[_Call]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call the function; record it if it is a linear layer."""
        found = func(*args, **(kwargs or {}))
        if func is not F.linear:
            return found
        given = dict(zip(("input", "weight", "bias"), args, strict=False)) | (kwargs or {})
        name, x = self.names.get(id(given["weight"])), given["input"]
        if name is None or x.ndim != 2:
            return found
        shift = torch.zeros_like(found, requires_grad=True)
        self.calls.setdefault(name, []).append(_Call(x.detach().clone(), shift, self.names.get(id(given.get("bias")))))
        return found + shift


def _recorded(problem: Problem, term: LossTerm, leaves: Mapping[str, Tensor] | None = None) -> tuple[Any, Tensor]:
    """Run one term; return the calls of linear layers by the name of their weight, and the scores."""
    leaves = leaves or problem.leaves()
    with _Recording(leaves) as recording:
        scores = problem.prediction(problem.outputs(leaves, term))
    return recording.calls, scores


def _outer_products(problem: Problem, term: LossTerm, samples: int) -> dict[str, str | None]:
    """Return the weights, with their biases, for which each sample's gradient in one term is an outer product.

    Found by a test on random vectors.
    """
    leaves = problem.leaves()
    calls, scores = _recorded(problem, term, leaves)
    once = {n: found[0] for n, found in calls.items() if len(found) == 1 and len(found[0].x) == samples}
    if not once:
        return {}
    generator = torch.Generator().manual_seed(0)
    random = torch.randn(scores.shape, generator=generator, dtype=torch.float64).to(scores)
    signs = torch.randn(samples, generator=generator, dtype=torch.float64).to(scores)
    shifts, every = [call.shift for call in once.values()], list(leaves.values())
    slopes = torch.autograd.grad(scores, [*shifts, *every], random, retain_graph=True, allow_unused=True)
    scaled = random * signs.reshape(-1, *[1] * (scores.ndim - 1))
    others = torch.autograd.grad(scores, shifts, scaled, allow_unused=True)
    whole = dict(zip(leaves, slopes[len(shifts) :], strict=True))
    found: dict[str, str | None] = {}
    for (name, call), slope, other in zip(once.items(), slopes, others, strict=False):
        if slope is None or other is None:
            continue
        pairs = [(other, signs[:, None] * slope), (whole[name], slope.mT @ call.x)]
        pairs += [(whole[call.bias], slope.sum(0))] if call.bias else []
        if all(a is not None and _close(a, b) for a, b in pairs):
            found[name] = call.bias
    return found


def _close(a: Tensor, b: Tensor) -> bool:
    """Return whether two tensors agree up to rounding."""
    allowed = OUTER * torch.finfo(a.dtype).eps ** 0.5 * float(b.abs().max())
    return float((a - b).abs().max()) <= allowed


def _outer(factors: Sequence[tuple[Tensor, Tensor]], *, one: bool) -> Tensor:
    """Return inner products of outer products: those of inputs times those of gradients, given for each term."""
    x = torch.cat([inputs for inputs, _ in factors]).double()
    repeats = torch.cat([torch.full((len(g),), g.shape[1]) for _, g in factors]).to(x.device)
    g = torch.cat([gradients.flatten(0, 1) for _, gradients in factors]).double()
    products = g @ g.mT
    of_inputs = (x @ x.mT).add_(float(one))
    owner = torch.arange(len(x), device=x.device).repeat_interleave(repeats)
    for sample, rows in enumerate(products.split(repeats.tolist())):
        rows *= of_inputs[sample, owner]
    return products


def _parts(blocks: Sequence[ParameterBlock], width: int) -> Iterator[list[tuple[ParameterBlock, slice]]]:
    """Split parameters into lists of slices with ``width`` entries in total, at most one slice per parameter."""
    found: list[tuple[ParameterBlock, slice]] = []
    left = width = max(1, width)
    for block in blocks:
        at, size = 0, block.shape.numel()
        while at < size:
            taken = min(left, size - at)
            found.append((block, slice(at, at + taken)))
            at, left = at + taken, left - taken
            if not left:
                yield found
                found, left = [], width
    if found:
        yield found
