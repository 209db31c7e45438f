"""Estimate the memory of matrix-vector products, and choose a way of computing them that fits."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.core import memory
from normscope.core.errors import NotEnoughMemoryError
from normscope.curvature.problem import LossTerm, Problem
from normscope.graph.inputs import first_samples

#: Number of products from which linearizing the gradient once is cheaper.
MANY = 100
#: Share of the free memory that may be used.
SHARE = 0.8
#: Temporary memory of a product, as a share of the autograd graph.
TRANSIENT = 0.5
#: Temporary vectors of a product and a solver step.
WORKING = 4


@dataclass(frozen=True)
class ProductPlan:
    """How products will be computed."""

    way: str  #: one of :data:`normscope.curvature.products.WAYS`
    bytes: float  #: additional memory needed
    free: float  #: memory available
    vectors: int  #: vectors of all parameters that may be kept beside the graph


def graph_bytes(problem: Problem, term: LossTerm) -> float:
    """Return the bytes that the graph of the gradient of one term keeps, from runs on two and four samples of it.

    Args:
        problem: the loss, entered as a context.
        term: one of its terms.
    """
    size = term.inputs.batch
    if size <= 4:
        return _kept_bytes(problem, term)
    two, four = (_kept_bytes(problem, replace(term, inputs=first_samples(term.inputs, n))) for n in (2, 4))
    return four + max(0.0, (four - two) / 2) * (size - 4)


def _kept_bytes(problem: Problem, term: LossTerm) -> float:
    """Build the graph of the gradient, and count what it keeps besides the parameters."""
    leaves = problem.leaves()
    own = {leaf.untyped_storage().data_ptr() for leaf in leaves.values()}
    seen: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in own:
            seen[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = problem.loss_of(problem.outputs(leaves, term), term)
        slopes = torch.autograd.grad(loss, list(leaves.values()), create_graph=True, allow_unused=True)
    del slopes, loss
    return float(sum(seen.values()))


def plan(problem: Problem, products: int, vectors: tuple[int, int], way: str | None = None) -> ProductPlan:
    """Return the fastest way of computing products that fits into memory.

    Args:
        problem: the loss, entered as a context.
        products: how many products are expected.
        vectors: how many vectors of all parameters are kept: the fewest possible, and the most that are useful.
        way: the requested way, if any.

    Raises:
        NotEnoughMemoryError: if no way fits, or the requested one does not, with both sizes and what to do.
    """
    graphs = [graph_bytes(problem, term) for term in problem.terms]
    vector = problem.dimension * torch.finfo(problem.dtype).bits // 8
    fewest, useful = vectors
    needed = {"retained": sum(graphs) + TRANSIENT * max(graphs), "recompute": (1 + TRANSIENT) * max(graphs)}
    needed["linearize"] = 2 * (needed["retained"] + (fewest + WORKING) * vector)
    free = SHARE * memory.available()
    order = [way] if way is not None else [*(["linearize"] if products > MANY else []), "retained", "recompute"]
    for candidate in order:
        fitting = min(useful, int((free - needed[candidate]) // vector) - WORKING)
        if fitting >= fewest:
            return ProductPlan(candidate, needed[candidate] + (fitting + WORKING) * vector, free, fitting)
    least = needed[order[-1]] + (fewest + WORKING) * vector
    raise NotEnoughMemoryError(
        f"Curvature of {problem.dimension} parameters on batches of {problem.terms[0].inputs.batch} samples needs "
        f"about {memory.readable(least)} of memory; {memory.readable(free)} may be used. Use smaller batches (batch=, "
        "--batch), fewer parameters (parameters=, --parameters) or fewer eigenvalues."
    )
