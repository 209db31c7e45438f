"""What products will cost in memory, before they are made, and which way of making them fits."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from normscope.core import memory
from normscope.core.errors import NotEnoughMemoryError
from normscope.curvature.problem import Problem, Term
from normscope.graph.inputs import first_samples

#: Products from which recording the derivative of the gradient once pays for itself.
MANY = 100
#: Share of the free memory that may be used.
SHARE = 0.8
#: What a product takes beside the graph it goes through, as a share of the graph.
TRANSIENT = 0.5
#: Vectors of all parameters that a product and a step of a solver hold for a moment.
WORKING = 4


@dataclass(frozen=True)
class Plan:
    """How products will be made."""

    way: str  #: one of :data:`normscope.curvature.products.WAYS`
    bytes: float  #: memory that is needed beside what is held already
    free: float  #: memory that is there
    vectors: int  #: vectors of all parameters that may be kept beside the graph


def graph_bytes(problem: Problem, term: Term) -> float:
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


def _kept_bytes(problem: Problem, term: Term) -> float:
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


def plan(problem: Problem, products: int, vectors: tuple[int, int], way: str | None = None) -> Plan:
    """Return the way of making products that fits into memory and costs least.

    Args:
        problem: the loss, entered as a context.
        products: how many products are expected.
        vectors: how many vectors of all parameters are kept beside: the fewest that do, and as many as are of use.
        way: a way that was asked for.

    Raises:
        NotEnoughMemoryError: if no way fits, or the one asked for does not, with both sizes and what to do.
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
            return Plan(candidate, needed[candidate] + (fitting + WORKING) * vector, free, fitting)
    least = needed[order[-1]] + (fewest + WORKING) * vector
    raise NotEnoughMemoryError(
        f"Curvature of {problem.dimension} parameters on batches of {problem.terms[0].inputs.batch} samples needs "
        f"about {memory.readable(least)} of memory; {memory.readable(free)} may be used. Use smaller batches (batch=, "
        "--batch), fewer parameters (parameters=, --parameters) or fewer eigenvalues."
    )
