"""Products of a vector with the Hessian, the Gauss-Newton matrix or a Fisher matrix of a loss."""

import contextlib
import warnings
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from normscope.core.environment import quiet_vmap
from normscope.core.errors import InputError
from normscope.curvature.problem import LossTerm, Problem
from normscope.graph.objective import Outputs
from normscope.linalg.accumulated import dot, length

#: Matrices that can be multiplied by.
MATRICES = ("hessian", "ggn", "fisher", "empirical-fisher", "residual")
#: How a product is computed.
WAYS = ("retained", "recompute", "linearize")
#: Vectors multiplied at once to build a dense matrix.
TOGETHER = 32
#: Largest relative difference between a linearized product and one by double backward.
AGREEMENT = 1e-5
#: Steps of a difference of gradients relative to the parameters; the best of them counts.
STEPS = (1e-4, 1e-7, 1e-10)

#: One tensor per block of parameters, or ``None`` where the product does not depend on it.
Parts = Sequence[Tensor | None]
Product = Callable[[Tensor], Parts]


class Products:
    r"""A curvature matrix of a problem, given by its products with vectors.

    ``hessian`` is :math:`\nabla^2 L`. ``ggn`` is :math:`J^T H_\ell J` with ``J`` the Jacobian of the outputs and
    :math:`H_\ell` the Hessian of the loss in the outputs. ``fisher`` is the Fisher matrix of the model's distribution,
    which for cross-entropy and squared error is the Gauss-Newton matrix. ``empirical-fisher`` is
    :math:`\frac1N \sum_n g_n g_n^T` with the gradients of single samples, for a loss that is a mean over samples.
    ``residual`` is the Hessian minus the Gauss-Newton matrix: the Hessian of the loss made linear in the outputs.

    Args:
        problem: the loss, entered as a context.
        matrix: one of :data:`MATRICES`.
        way: ``retained`` keeps the graph of the gradient, ``recompute`` builds it anew for each product with less
            memory, ``linearize`` records the derivative of the gradient once, which pays off after about 100 products.

    Attributes:
        count: products made so far.

    Raises:
        InputError: if the matrix or the way is unknown, or does not exist for this loss.

    >>> model = torch.nn.Linear(2, 1, bias=False)
    >>> with Problem(model, (torch.eye(2), torch.zeros(2, 1))) as problem:
    ...     Products(problem)(torch.tensor([1.0, 0.0])).tolist()
    [1.0, 0.0]
    """

    def __init__(self, problem: Problem, matrix: str = "hessian", way: str = "retained") -> None:
        if matrix not in MATRICES:
            raise InputError(f"Unknown matrix {matrix!r}. Known matrices: {', '.join(MATRICES)}.")
        if way not in WAYS:
            raise InputError(f"Unknown way {way!r}. Known ways: {', '.join(WAYS)}.")
        if matrix == "fisher" and problem.loss is not None:
            raise InputError("The Fisher matrix needs a likelihood. With your own loss, use ggn or empirical-fisher.")
        self.problem, self.matrix, self.way, self.count = problem, matrix, way, 0
        self._kept: list[Product] | None = None
        if way == "linearize":
            self._kept = self._linearized() if matrix == "hessian" else None
            self.way = "linearize" if self._kept else "retained"
        if self.way == "retained":
            self._kept = [self._build(term) for term in problem.terms]

    @property
    def dimension(self) -> int:
        """Return the size of the matrix."""
        return self.problem.dimension

    def __call__(self, vector: Tensor) -> Tensor:
        """Multiply a vector; terms are added in float64."""
        self.count += 1
        return self._sum(vector.to(self.problem.dtype))

    def _sum(self, vector: Tensor) -> Tensor:
        """Multiply one vector, or several in rows."""
        problem = self.problem
        if len(problem.terms) == 1:
            return problem.flatten(self._product(0)(vector), vector)
        total = torch.zeros(vector.shape, dtype=torch.float64, device=vector.device)
        for place, term in enumerate(problem.terms):
            total += term.share * problem.flatten(self._product(place)(vector), vector).double()
        return total.to(vector.dtype)

    def _product(self, place: int) -> Product:
        return self._build(self.problem.terms[place]) if self._kept is None else self._kept[place]

    def _build(self, term: LossTerm) -> Product:
        return self._hessian(term) if self.matrix in ("hessian", "residual") else self._through_outputs(term)

    def _hessian(self, term: LossTerm) -> Product:
        """Record the gradient as a function of the parameters: its backward pass is the product."""
        problem = self.problem
        leaves = problem.leaves()
        outputs = problem.outputs(leaves, term)
        loss = self._along(term, outputs) if self.matrix == "residual" else problem.loss_of(outputs, term)
        every = list(leaves.values())
        slopes = torch.autograd.grad(loss, every, create_graph=True, allow_unused=True)
        curved = [(i, slope) for i, slope in enumerate(slopes) if slope is not None and slope.requires_grad]

        def product(vector: Tensor) -> Parts:
            if not curved:
                return [None] * len(every)
            parts = list(problem.split(vector).values())
            return torch.autograd.grad(
                [slope for _, slope in curved], every, [parts[i] for i, _ in curved],
                retain_graph=self.way != "recompute", allow_unused=True, is_grads_batched=vector.ndim == 2,
            )  # fmt: skip

        return product

    def _loss_of_scores(self, term: LossTerm, outputs: Outputs, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return the loss as a function of the scores alone, and the scores as a leaf.

        Raises:
            InputError: if the loss is not known as a function of the outputs.
        """
        if "loss" in outputs and self.problem.loss is None:
            raise InputError(
                f"The {self.matrix} matrix needs the loss as a function of the outputs. Pass loss=f(outputs, labels)."
            )
        free = scores.detach().requires_grad_(True)
        replaced = {name: free if value is scores else value.detach() for name, value in outputs.items()}
        return self.problem.loss_of(replaced, term), free

    def _along(self, term: LossTerm, outputs: Outputs) -> Tensor:
        """Return the loss linearized in the outputs; its Hessian is what the Gauss-Newton matrix leaves out."""
        scores = self.problem.prediction(outputs)
        return (torch.autograd.grad(*self._loss_of_scores(term, outputs, scores))[0] * scores).sum()

    def _through_outputs(self, term: LossTerm) -> Product:
        """Record the Jacobian of the outputs in both directions, and the middle factor."""
        problem = self.problem
        leaves = problem.leaves()
        outputs = problem.outputs(leaves, term)
        every, scores = list(leaves.values()), problem.prediction(outputs)
        pushed, middle = jacobian_product(problem, every, scores), self.middle(term, outputs, scores)

        def product(vector: Tensor) -> Parts:
            return torch.autograd.grad(
                scores, every, middle(pushed(vector)),
                retain_graph=True, allow_unused=True, is_grads_batched=vector.ndim == 2,
            )  # fmt: skip

        return product

    def middle(self, term: LossTerm, outputs: Outputs, scores: Tensor) -> Callable[[Tensor], Tensor]:
        """Return the product with the Hessian of the loss in the outputs, or with the gradients of single samples."""
        loss, free = self._loss_of_scores(term, outputs, scores)
        if self.matrix == "empirical-fisher":
            slope = torch.autograd.grad(loss, free)[0]
            axes = list(range(1 - slope.ndim, 0))

            def outer(u: Tensor) -> Tensor:
                along = (slope * u).sum(axes, keepdim=True) if axes else slope * u
                return len(slope) * slope * along

            return outer
        slope = torch.autograd.grad(loss, free, create_graph=True)[0]
        if not slope.requires_grad:
            return torch.zeros_like
        return lambda u: torch.autograd.grad(slope, free, u, retain_graph=True, is_grads_batched=u.ndim > free.ndim)[0]

    def _linearized(self) -> list[Product] | None:
        """Return linearizations of the gradient, or None where it cannot be linearized or double backward disagrees."""
        found: list[Product] = []
        for term in self.problem.terms:
            try:
                product = self._linearized_term(term)
            except (RuntimeError, NotImplementedError, TypeError, ValueError):
                return None
            if product is None:
                return None
            found.append(product)
        return found

    def _linearized_term(self, term: LossTerm) -> Product | None:
        """Return the linearization of the gradient of one term, or None where double backward disagrees."""
        problem = self.problem
        names = [block.name for block in problem.blocks]

        def loss(parts: tuple[Tensor, ...]) -> Tensor:
            return problem.loss_of(problem.outputs(dict(zip(names, parts, strict=True)), term), term)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of torch's own tracer, about constants
            values = tuple(leaf.detach() for leaf in problem.leaves().values())
            _, derivative = torch.func.linearize(torch.func.grad(loss), values)

        def product(vector: Tensor) -> Parts:
            return derivative(tuple(problem.split(vector).values()))

        vector = problem.random(1)
        expected = problem.flatten(self._hessian(term)(vector))
        product(vector)  # what was recorded may change its own constants in place, so the second product counts
        gap = length(problem.flatten(product(vector)) - expected)
        return product if gap <= AGREEMENT * length(expected) else None

    def dense(self) -> Tensor:
        """Return the whole matrix in float64: ``dimension`` products, many at once where the model allows it.

        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> with Problem(model, (torch.eye(2), torch.zeros(2, 1))) as problem:
        ...     Products(problem).dense().tolist()
        [[1.0, 0.0], [0.0, 1.0]]
        """
        n = self.dimension
        matrix = torch.empty(n, n, dtype=torch.float64, device=self.problem.device)
        for at in range(0, n, TOGETHER):
            rows = torch.zeros(min(TOGETHER, n - at), n, dtype=self.problem.dtype, device=self.problem.device)
            rows[:, at:].fill_diagonal_(1.0)
            matrix[at : at + TOGETHER] = self._many(rows).double()
        return (matrix + matrix.mT) / 2

    def _many(self, rows: Tensor) -> Tensor:
        """Multiply several vectors: batched, or one by one where an operation has no batching rule."""
        if self.way == "retained":
            with contextlib.suppress(RuntimeError), quiet_vmap():
                found = self._sum(rows)
                self.count += len(rows)
                return found
        return torch.stack([self(row) for row in rows])


def jacobian_product(problem: Problem, leaves: Sequence[Tensor], scores: Tensor) -> Callable[[Tensor], Tensor]:
    """Return the derivative of outputs along a vector of parameters, or along several in rows, as a function of it.

    Args:
        problem: the loss, entered as a context.
        leaves: its parameters.
        scores: the outputs, computed from these leaves.
    """
    seed = torch.zeros_like(scores, requires_grad=True)
    pulled = torch.autograd.grad(scores, leaves, seed, create_graph=True, allow_unused=True)
    used = [(i, part) for i, part in enumerate(pulled) if part is not None]

    def pushed(vector: Tensor) -> Tensor:
        parts = list(problem.split(vector).values())
        several = {"retain_graph": True, "is_grads_batched": vector.ndim == 2}
        return torch.autograd.grad([p for _, p in used], seed, [parts[i] for i, _ in used], **several)[0]

    return pushed


def symmetry_gap(products: Products, seed: int = 0) -> float:
    r"""Return :math:`|u^T A v - v^T A u| / (\|u\| \|A v\|)` for random vectors: zero up to rounding.

    Args:
        products: the matrix.
        seed: of the vectors.
    """
    u, v = (products.problem.random(s) for s in (seed, seed + 1))
    image = products(v)
    scale = length(u) * length(image)
    return abs(dot(u, image) - dot(v, products(u))) / scale if scale else 0.0


def difference_gap(problem: Problem, vector: Tensor, image: Tensor) -> float:
    r"""Return how far ``H v`` is from a central difference of gradients along ``v``, relative to :math:`\|H v\|`.

    The least over several steps. Activations with kinks need steps so short that none is crossed, which only float64
    can resolve.

    Args:
        problem: the loss, entered as a context, in float64.
        vector: the direction ``v``; the largest eigenvector shows the most.
        image: the product ``H v`` to be tested.
    """
    point, direction = problem.point(), vector.to(problem.dtype)
    norm, scale = length(vector), length(image)
    if not norm or not scale:
        return 0.0
    best = float("inf")
    for step in STEPS:
        h = step * max(length(point), 1.0) / norm
        ahead, behind = (problem.gradient(point + sign * h * direction)[1].double() for sign in (1, -1))
        best = min(best, length((ahead - behind) / (2 * h) - image.double()) / scale)
    return best
