"""Norms of linear segments: what lies between two atoms, measured as one operator wherever that is possible."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from normscope.core.value import exact_sum, log_sum
from normscope.linalg.bounds import NormBounds
from normscope.linalg.convolution import convolution_norm
from normscope.linalg.dense import gram_matrix, gram_norm, largest_matrix_norm, matrix_norm
from normscope.linalg.lanczos import operator_norm
from normscope.linalg.matrix_rounding import schur_norm
from normscope.linalg.product import chain_norm
from normscope.lipschitz.assembly_error import forming_error
from normscope.lipschitz.tokens import TokenMatrices, token_axis, token_matrices
from normscope.operators.expression import Expr, between, dominators, evaluate
from normscope.operators.linear_map import LinearMap, images

#: Largest smaller side of an operator whose Gram matrix is formed.
LARGEST_GRAM = 1_536
#: Most entries of the matrix of a segment that is formed itself, rather than its Gram matrix.
LARGEST_FORMED = 2**22
#: Largest number of entries of any tensor in a chain whose matrices are multiplied out.
LARGEST_FACTOR = 1_024
#: Multiplications up to which the matrix of a segment that acts token by token is cheap to compose.
LARGEST_COMPOSED = 2e10
#: Most entries of a matrix of one step of a chain that is kept for longer chains.
LARGEST_KEPT = 2**12
#: Largest side of a block of a map that acts index by index, and most entries of all blocks.
LARGEST_BLOCK, LARGEST_BLOCKS = 512, 2**27
LOG_2 = math.log(2.0)
#: Largest logarithm of a norm that counts as one up to rounding, in float32 too.
NEARLY_ONE = 1e-6
#: Isometric kinds: they leave every norm as it is.
UNIT = ("isometry", "embedding")


@dataclass(frozen=True)
class Effort:
    """How hard to try."""

    tolerance: float = 5e-3  #: relative width aimed at for the norm of a convolution or a segment
    delta: float = 1e-9  #: failure probability of each probabilistic bound
    seed: int = 0  #: of the random start vectors
    lanczos: bool = True  #: also bound long segments probabilistically


class SegmentNorms:
    """Norms of linear maps between expressions, each computed once.

    Args:
        effort: how hard to try.
        progress: called with a line of text before each expensive norm.
    """

    def __init__(self, effort: Effort | None = None, progress: Callable[[str], None] | None = None) -> None:
        self.effort = effort or Effort()
        self.progress = progress or (lambda text: None)
        self.matrices = TokenMatrices()
        self._memo: dict[tuple[int, int], NormBounds] = {}
        self._made: dict[tuple[Any, ...], Expr] = {}
        self._content: dict[Any, tuple[NormBounds, Tensor]] = {}
        self._links: dict[tuple[Any, ...], tuple[Tensor, float]] = {}

    def norm(self, source: Expr, target: Expr) -> NormBounds:
        """Return the norm of the linear map from ``source`` (which every path passes) to ``target``."""
        key = (source.id, target.id)
        if key not in self._memo:
            self._memo[key] = self._measure(source, target)
        return self._memo[key]

    def made(self, make: Callable[..., Expr], *parts: Any) -> Expr:
        """Return an expression made of others, the same one for the same parts, so that its norm is found once."""
        key = make, *parts
        if key not in self._made:
            self._made[key] = make(*parts)
        return self._made[key]

    def has_closed_form(self, source: Expr, target: Expr) -> bool:
        """Return whether a segment is one convolution, acts token by token, or is small: cheap to measure exactly."""
        chain = dominators(source, target)
        if _small(chain) or _convolution_in(chain) is not None:
            return True
        axis = token_axis(source, target)
        if axis is None:
            return False
        sizes = [e.numel // axis[0][0] for e in chain]
        return sizes[0] * sizes[-1] * max(sizes) <= LARGEST_COMPOSED

    def _measure(self, source: Expr, target: Expr) -> NormBounds:
        """Choose a method and measure."""
        if source.id == target.id:
            return _unit("identity")
        if source.numel == 0 or target.numel == 0:
            return NormBounds.exact(0.0, method="zero")
        whole = dominators(source, target)
        chain, exponent = _stripped(whole)
        if len(chain) == 1:
            return _unit("isometry").scaled(exponent * LOG_2)
        if len(chain) < len(whole):
            return self.norm(chain[0], chain[-1]).scaled(exponent * LOG_2)
        return self._measure_chain(chain)

    def _measure_chain(self, chain: list[Expr]) -> NormBounds:
        """Measure a segment that neither begins nor ends with an isometry."""
        source, target = chain[0], chain[-1]
        whole = self._as_convolution(chain)
        if whole is not None:
            return whole
        if len(chain) == 2 and (_is_kind(source, target, "contraction") or _multiplies_rows(source, target)):
            return self._one_step(source, target)
        by_token = self._by_token(source, target)
        if by_token is not None:
            return by_token
        if len(chain) == 2:
            return self._one_step(source, target)
        if max(e.numel for e in chain) <= LARGEST_FACTOR:
            matrices, errors = zip(*(self._link(a, b) for a, b in itertools.pairwise(chain)), strict=True)
            return chain_norm(matrices, self.effort.seed, log_errors=errors)
        return self._long(chain)

    def _link(self, source: Expr, target: Expr) -> tuple[Tensor, float]:
        """Return the dense matrix of a step of a chain and the logarithm of its error; small ones are kept."""
        op = _single(source, target)
        # Centring is the same matrix in every normalizer of the same shape.
        key = (source.id, target.id) if op is None else op.data.get("centring", (source.id, target.id))
        found = self._links.get(key)
        if found is not None:
            return found
        if target.op is not None and _multiplies_rows(source, target) and source.numel == source.shape[-1]:
            found = target.op.data["weight"].to(torch.float64), -math.inf
        elif _is_kind(source, target, "diagonal") and target.op is not None and source.shape == target.shape:
            scale = target.op.data["scale"].to(torch.float64).expand(target.shape)
            found = torch.diag(scale.flatten()), forming_error(source, target).log_total
        else:
            found = images(evaluate(source, target), source.shape).mT, forming_error(source, target).log_total
        if found[0].numel() <= LARGEST_KEPT:
            self._links[key] = found
        return found

    def _long(self, chain: list[Expr]) -> NormBounds:
        """Measure a chain that no closed form covers: the product of its parts, and the whole if it is small."""
        parts = self._parts(chain)
        product = _product_of(parts)
        heavy = [p for p in parts if p.method not in ("isometry", "identity", "contraction")]
        if len(heavy) > 1 and not _small(chain):  # rotations of positions are measured, and their norm is one
            heavy = [p for p in heavy if p.log_upper > NEARLY_ONE]
        if len(heavy) <= 1 and all(p.log_upper <= NEARLY_ONE for p in parts if p not in heavy) and not _small(chain):
            # One operator between maps of norm one: the product is as good as it gets, but nothing is attained.
            return replace(product, method=heavy[0].method if heavy else "contraction")
        if not _small(chain) and not self.effort.lanczos:
            return product
        self.progress(f"segment of {len(chain) - 1} linear operations")
        return self._whole(chain[0], chain[-1], product)

    def _whole(self, source: Expr, target: Expr, fallback: NormBounds) -> NormBounds:
        """Measure a segment as one matrix-free operator: by its Gram matrix if it is small, else probabilistically."""
        function = evaluate(source, target)
        mapping = LinearMap.from_function(function, source.shape, target.shape, dtype=torch.float64)
        if _small([source, target]):
            forming = forming_error(source, target, adjoint=True)
            if forming.fits and source.numel * target.numel <= LARGEST_FORMED:
                return forming.allow(matrix_norm(mapping.matrix(), seed=self.effort.seed)).meet(fallback)
            if not forming.squares_fit:
                return fallback
            small = mapping if source.numel <= target.numel else mapping.transpose
            error, mass = math.exp(forming.log_total), math.exp(forming.log_mass)
            exact = gram_norm(small, gram_matrix(small), 2 * error * mass + error**2, error, seed=self.effort.seed)
            return exact.meet(fallback)
        tolerance = max(self.effort.tolerance, 1e-2)
        found = operator_norm(mapping, tolerance=tolerance, delta=self.effort.delta, seed=self.effort.seed)
        return found.meet(fallback)

    def _parts(self, chain: list[Expr]) -> list[NormBounds]:
        """Measure a chain part by part, each as long as one method covers it."""
        parts: list[NormBounds] = []
        start = 0
        while start < len(chain) - 1:
            stop = self._longest_run(chain, start)
            if stop == start + 1:
                parts.append(self._one_step(chain[start], chain[stop]))
            else:
                parts.append(self.norm(chain[start], chain[stop]))
            start = stop
        return parts

    def _longest_run(self, chain: list[Expr], start: int) -> int:
        """Return the end of the longest run from ``start`` that is one convolution or acts token by token."""
        best = start + 1
        for stop in range(len(chain) - 1, start + 1, -1):
            if stop == len(chain) - 1 and start == 0:
                continue  # the whole chain was tried before
            run = chain[start : stop + 1]
            if _convolution_in(run) is not None or token_axis(run[0], run[-1]) is not None:
                return stop
        return best

    def _as_convolution(self, chain: list[Expr]) -> NormBounds | None:
        """Measure ``diag . convolution . diag`` with channel-wise factors."""
        found = _convolution_in(chain)
        if found is None:
            return None
        expr, before, after, mode = found
        data: dict[str, Any] = dict(expr.op.data)  # type: ignore[union-attr]
        if mode is not None:
            data["padding"], data["input_size"] = mode[1], mode[2]
        key = _fingerprint(data, before, after, mode, self.effort.tolerance)
        if key not in self._content:
            self.progress(f"convolution {expr.op.owner or expr.op.weight_name}")  # type: ignore[union-attr]
            pairs = data["padding"]
            measured = convolution_norm(
                data["weight"],
                data["input_size"],
                **{name: data[name] for name in ("stride", "dilation", "groups", "transposed", "output_padding")},
                padding=[a for a, _ in pairs] if all(a == b for a, b in pairs) else "same",
                padding_mode="zeros" if mode is None else mode[0],
                output_scale=after,
                input_scale=before,
                tolerance=self.effort.tolerance,
                delta=self.effort.delta,
                seed=self.effort.seed,
            )
            self._content[key] = measured, data["weight"]  # held, so that no other weight takes its address
        return self._content[key][0]

    def _by_token(self, source: Expr, target: Expr) -> NormBounds | None:
        """Measure a map that treats every token alike by its matrix on one token."""
        matrix = self.matrices.matrix(source, target)
        if matrix is None:
            return None
        forming = forming_error(source, target)
        return forming.allow(matrix_norm(matrix, seed=self.effort.seed)) if forming.fits else None

    def _of_weight(self, weight: Tensor) -> NormBounds:
        """Measure a weight, or the largest of several, once for all operations that use it."""
        key = "matrix", weight.data_ptr(), tuple(weight.shape), weight.stride(), weight.dtype
        if key not in self._content:
            measured = largest_matrix_norm(weight.reshape(-1, *weight.shape[-2:]), seed=self.effort.seed)
            self._content[key] = measured, weight  # held, so that no other weight takes its address
        return self._content[key][0]

    def _one_step(self, source: Expr, target: Expr) -> NormBounds:
        """Measure one operation, or one block between two dominators."""
        op = target.op
        if op is not None and len(target.inputs) == 1 and target.inputs[0].id == source.id:
            known = self._known(op, source, target)
            if known is not None and known.method == "Schur test" and known.width > 1e-9 and _small([source, target]):
                return self._whole(source, target, known)
            if known is not None:
                return known
        blocks = _per_index(source, target, self.effort.seed)
        if blocks is not None:
            return blocks
        fallback = self._paths(source, target)
        if not _small([source, target]) and not self.effort.lanczos:
            return fallback
        return self._whole(source, target, fallback)

    def _known(self, op: Any, source: Expr, target: Expr) -> NormBounds | None:
        """Return the norm of a single operation that has a closed form."""
        if op.kind in UNIT:
            return _unit("isometry")
        if op.kind == "contraction":
            return NormBounds(-math.inf, 0.0, 0.0, 0.0, "contraction")
        if op.kind == "diagonal":
            return NormBounds.exact(float(op.data["scale"].to(torch.float64).abs().max()), method="diagonal")
        if op.kind == "nonnegative":
            return schur_norm(LinearMap.from_function(op.apply, source.shape, target.shape, dtype=torch.float64))
        if op.kind == "matrix":
            return self._of_weight(op.data["weight"])
        if op.kind == "convolution":
            return self._as_convolution([source, target])
        return None

    def _paths(self, source: Expr, target: Expr) -> NormBounds:
        """Bound a block of several paths: sums add, concatenations add in squares, everything else multiplies."""
        logs: dict[int, float] = {source.id: 0.0}
        for expr in between(source, target):
            below = [logs[i.id] for i in expr.inputs]
            if expr.op is None or max(below, default=-math.inf) == -math.inf:
                logs[expr.id] = -math.inf
            elif expr.op.kind == "sum":
                logs[expr.id] = log_sum(below, math.inf)
            elif expr.op.kind == "concat":
                logs[expr.id] = log_sum([2 * b for b in below], math.inf) / 2
            else:
                own = self._log_of_step(expr) if len(below) == 1 else math.inf
                logs[expr.id] = exact_sum((below[0], own), math.inf)
        return NormBounds.certified(-math.inf, logs[target.id], "sum over paths")

    def _log_of_step(self, expr: Expr) -> float:
        """Return the logarithm of the norm of one operation, infinite where no closed form is known."""
        known = None if expr.op is None else self._known(expr.op, expr.inputs[0], expr)
        return math.inf if known is None else known.log_upper


def _stripped(chain: list[Expr]) -> tuple[list[Expr], int]:
    """Return a chain without steps that change no norm, and the exponent of the power of two that was taken out.

    At the end these are steps that copy entries; at the beginning they must be onto as well. Equal factors that are
    powers of two (the weight of a new normalizer) are taken out exactly.
    """
    exponent = 0
    for last, kinds in ((True, UNIT), (False, ("isometry",))):
        while len(chain) > 1:
            below, above = chain[-2:] if last else chain[:2]
            power = _power_of_two(below, above)
            if power is None and not _is_kind(below, above, *kinds):
                break
            exponent += power or 0
            chain = chain[:-1] if last else chain[1:]
    return chain, exponent


def _power_of_two(below: Expr, above: Expr) -> int | None:
    """Return the exponent if a step multiplies every entry by plus or minus one and the same power of two."""
    op = _single(below, above)
    if op is None or op.kind != "diagonal":
        return None
    factors = op.data["scale"].detach().to(torch.float64).abs()
    mantissa, exponent = math.frexp(float(factors.max()))
    return exponent - 1 if mantissa == 0.5 and bool((factors == factors.max()).all()) else None


def _multiplies_rows(below: Expr, above: Expr) -> bool:
    """Return whether a step is one multiplication by a matrix along the last axis."""
    op = _single(below, above)
    return op is not None and op.kind == "matrix" and op.data["axis"] == -1 and op.data["weight"].ndim == 2


def _per_index(source: Expr, target: Expr, seed: int) -> NormBounds | None:
    """Measure a map that acts on each row of its source separately, perhaps differently, on few entries each."""
    width = source.shape[-1] if source.shape else 0
    if not 0 < width <= LARGEST_BLOCK or source.numel == width:
        return None
    found = token_matrices(source, target, LARGEST_BLOCKS)
    forming = forming_error(source, target)
    if found is None or not forming.fits:
        return None
    stack = found[0]
    distinct = torch.unique(stack.flatten(1), dim=0).reshape(-1, *stack.shape[1:])
    return forming.allow(largest_matrix_norm(distinct, seed=seed))


def _single(below: Expr, above: Expr) -> Any:
    """Return the one operation between neighbours of a chain, or ``None`` for a block."""
    return above.op if len(above.inputs) == 1 and above.inputs[0].id == below.id else None


def _is_kind(below: Expr, above: Expr, *kinds: str) -> bool:
    """Return whether a step is one operation of these kinds.

    ``UNIT`` ones have ``||A x|| = ||x||`` for all x; an isometry is onto as well; a contraction enlarges nothing.
    """
    op = _single(below, above)
    return op is not None and op.kind in kinds


def _convolution_in(chain: list[Expr]) -> tuple[Expr, Tensor | None, Tensor | None, Any] | None:
    """Find ``[pad] [scale]* convolution [scale]*`` with channel-wise scales in a chain."""
    steps = [(above, _single(below, above)) for below, above in itertools.pairwise(chain)]
    places = [i for i, (_, op) in enumerate(steps) if op is not None and op.kind == "convolution"]
    if len(places) != 1 or any(op is None for _, op in steps):
        return None
    place = places[0]
    expr, convolution = steps[place]
    scales: list[Tensor | None] = [None, None]  # before and after
    mode = None
    for i, (above, op) in enumerate(steps):
        if i == place:
            continue
        if i == place - 1 and "pad_mode" in op.data:
            mode = op.data["pad_mode"]
            if any(a != b for a, b in mode[1]) or any(p != (0, 0) for p in convolution.data["padding"]):
                return None
            continue
        if op.kind != "diagonal":
            return None
        axis = len(above.shape) - convolution.data["weight"].ndim + 1
        scale = channel_scale(op.data["scale"], above.shape, axis)
        if scale is None:
            return None
        before = scales[i > place]
        scales[i > place] = scale if before is None else before * scale
    return expr, scales[0], scales[1], mode


def channel_scale(scale: Tensor, shape: tuple[int, ...], axis: int) -> Tensor | None:
    """Return a factor of a tensor that depends on the channel alone, along an axis, as a vector, or ``None``."""
    full = scale.to(torch.float64)
    full = full.reshape((1,) * (len(shape) - full.ndim) + tuple(full.shape))
    if any(size != 1 for i, size in enumerate(full.shape) if i != axis):
        return None
    return full.flatten().expand(shape[axis]).clone()


def _fingerprint(data: dict[str, Any], before: Any, after: Any, mode: Any, tolerance: float) -> Any:
    """Return a key of everything a convolution's norm depends on, so that a shared layer is measured once."""
    weight = data["weight"]
    tensors = (weight.data_ptr(), tuple(weight.shape), weight.stride(), weight.dtype)
    scales = tuple(None if t is None else tuple(t.flatten().tolist()) for t in (before, after))
    rest = tuple(str(data[k]) for k in sorted(data) if k != "weight")
    return tensors, scales, rest, str(mode), tolerance


def _small(chain: list[Expr]) -> bool:
    """Return whether the Gram matrix of a segment is small enough to be formed."""
    return min(chain[0].numel, chain[-1].numel) <= LARGEST_GRAM


def _product_of(parts: list[NormBounds]) -> NormBounds:
    """Return the product of the norms of consecutive parts, which gives no lower bound."""
    if any(p.log_upper == -math.inf for p in parts):
        return NormBounds.exact(0.0, method="zero")
    upper = exact_sum((p.log_upper for p in parts), math.inf)
    probably_zero = any(p.log_probable == -math.inf for p in parts)
    probable = -math.inf if probably_zero else exact_sum((p.log_probable for p in parts), math.inf)
    return NormBounds(-math.inf, upper, min(probable, upper), sum(p.delta for p in parts), "product of norms")


def _unit(method: str) -> NormBounds:
    """Return the norm one."""
    return NormBounds(0.0, 0.0, 0.0, 0.0, method)
