r"""Local response normalization: ``y_i = x_i u_i^-beta``, ``u_i = k + (alpha/n) sum_{j in W_i} x_j^2``.

``W_i`` is a window of n neighbouring channels that contains i. The Jacobian is ``diag(u^-beta) - 2 beta B`` with
``B_ij = (alpha/n) x_i x_j u_i^(-beta-1)`` for j in ``W_i``. As i is in its own window, row i of B has norm at most

    ``(u_i - k) u_i^(-beta-1)``,

which grows with u up to ``u* = k (beta + 1)/beta`` and falls beyond. Each channel lies in at most n windows, so
``||B v||^2 <= sum_i ||B_i||^2 ||v restricted to W_i||^2 <= n max_i ||B_i||^2 ||v||^2``. Hence the constant is at most

    ``k^-beta + 2 beta sqrt(n) (u - k) u^(-beta-1)``,   ``u = min(u*, the largest u on the domain)``.

It is computed from ``t = k/(u - k)``, without a difference of nearly equal numbers: ``u = k (1 + 1/t)``, and the second
term is ``k^-beta 2 beta sqrt(n) (1 + 1/t)^-beta / (1 + t)``. At ``u*`` one has ``t = beta``; smaller u have larger t.
"""

import math
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional

from normscope.core.rounding import TINIEST, up
from normscope.core.statement import statement
from normscope.graph.ir import Ref
from normscope.graph.recognise import name_of
from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Range, product_above
from normscope.operators.normalizer import Constants, Normalizer, no_bound, proved
from normscope.operators.site import Site
from normscope.operators.written_out import NormalizerCandidate, WrittenOut, agrees, probe


@dataclass(frozen=True)
class LocalResponse:
    """The parameters of a local response normalization."""

    size: int  #: the number n of channels in a window
    alpha: float  #: the factor of the mean square, ``>= 0``
    beta: float  #: the power, ``>= 0``
    k: float  #: what is added to it, ``> 0``

    def __call__(self, x: Tensor) -> Tensor:
        """Return the normalized tensor."""
        return functional.local_response_norm(x, self.size, self.alpha, self.beta, self.k)

    def window_means(self, squares: Tensor) -> Tensor:
        """Return the mean over the window of every channel, zeros beyond the ends."""
        rows = squares.flatten(2).mT  # (batch, positions, channels)
        padded = functional.pad(rows, (self.size // 2, (self.size - 1) // 2))
        return functional.avg_pool1d(padded, self.size, 1).mT.reshape(squares.shape)

    @property
    def largest_factor(self) -> float:
        """Return ``k^-beta``, the most an entry can grow, rounded up."""
        return max(up(self.k**-self.beta), TINIEST)


@statement("normscope", "Proposition LRN-1")
def local_response_bound(numbers: LocalResponse, sup: float = math.inf) -> float:
    """Return an upper bound of the Lipschitz constant where no entry is larger than ``sup``.

    Args:
        numbers: size of the window, alpha, beta and k.
        sup: the largest absolute entry of the input; infinity for all inputs.

    >>> round(local_response_bound(LocalResponse(5, 1e-4, 0.75, 1.0)), 4)
    2.0152
    >>> local_response_bound(LocalResponse(5, 1e-4, 0.75, 1.0), sup=10.0) < 1.05
    True
    """
    beta = numbers.beta
    excess = numbers.alpha * sup * sup if numbers.alpha > 0 and beta > 0 else 0.0
    t = max(beta, numbers.k / excess) if excess != 0 else math.inf
    second = 2 * beta * math.sqrt(numbers.size) * math.exp(-beta * math.log1p(1 / t)) / (1 + t)
    return up(numbers.largest_factor * (1 + second), 32.0)


class LocalResponseDivision(Nonlinear):
    """The whole normalization as one operation."""

    def __init__(self, x: Expr, numbers: LocalResponse) -> None:
        self.inputs, self.numbers = (x,), numbers

    def constant(self, context: Context) -> Lip:
        """Return the bound on the range of the input times the constant of the input."""
        sup = context.range(self.inputs[0]).sup
        return context.lipschitz(self.inputs[0]).scaled(math.log(local_response_bound(self.numbers, sup)))

    def image(self, context: Context) -> Range:
        """Return the range of the input times ``k^-beta``, the most an entry can grow."""
        inside, most = context.range(self.inputs[0]), self.numbers.largest_factor
        entry, row, norm = (product_above(most, size) for size in (inside.sup, inside.row, inside.norm))
        return Range(-entry, entry, row, norm)


def _written_out(candidate: NormalizerCandidate) -> WrittenOut | None:
    """Find ``x / (k + alpha mean(x^2 in the window))^beta`` as torch writes it, checked on numbers."""
    node, around = candidate.node, candidate.around
    if name_of(node) != "div" or len(node.args) < 2 or not isinstance(node.args[0], Ref):
        return None
    numbers = _numbers(candidate)
    source = None if numbers is None else candidate.source(node.args[0].name)
    if numbers is None or source is None or len(source.shape) < 3:
        return None
    name, points = node.args[0].name, (probe(source.shape, 0), probe(source.shape, 1, 100.0))
    if not agrees(around.run(node, name), numbers, points, 1e-9):
        return None
    details = {"size": numbers.size, "alpha": numbers.alpha, "beta": numbers.beta}
    result = lambda: candidate.call.atom(LocalResponseDivision(source, numbers), source.shape)  # noqa: E731
    known: dict[str, Any] = {"gamma": None, "beta": None, "eps": numbers.k, "details": details}
    return candidate.written("local_response_norm", source, name, result, **known)


def _numbers(candidate: NormalizerCandidate) -> LocalResponse | None:
    """Read the numbers off the power, the sum, the product and the pooling below the division."""
    find = candidate.around.recogniser
    power = find.through(candidate.node.args[1])
    total = find.through(power.args[0]) if power is not None and name_of(power) == "pow" else None
    scaled = find.through(total.args[0]) if total is not None and name_of(total) == "add" else None
    pooled = find.through(scaled.args[0]) if scaled is not None and name_of(scaled) == "mul" else None
    while pooled is not None and name_of(pooled) in ("squeeze", "view"):
        pooled = find.through(pooled.args[0])
    if power is None or total is None or scaled is None or pooled is None or "avg_pool" not in name_of(pooled):
        return None
    alpha, beta, k = scaled.args[1], power.args[1], total.args[1]
    if not all(isinstance(number, int | float) and 0 <= number < math.inf for number in (alpha, beta, k)) or k == 0:
        return None
    return LocalResponse(pooled.args[1][0], float(alpha), float(beta), float(k))


def _constants(site: Site, floor: Tensor | None, mode: str) -> Constants:
    if not site.details:
        return no_bound("normscope Proposition LRN-1")
    numbers = LocalResponse(int(site.details["size"]), site.details["alpha"], site.details["beta"], site.eps)
    return proved(local_response_bound(numbers), "normscope Proposition LRN-1")


NORMALIZER = Normalizer(
    kind="local_response_norm",
    formula="x (k + alpha mean(x^2))^-beta, the mean over a window of channels",
    constants=_constants,
    written_out=_written_out,
)
