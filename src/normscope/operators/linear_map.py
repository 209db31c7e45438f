"""Matrix-free linear maps, given by a function and its adjoint."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, cast

import torch
from torch import Tensor

from normscope.core.environment import quiet_vmap
from normscope.core.errors import InputError

#: Numbers held at once while a dense matrix is built (256 MiB of float64).
CHUNK_NUMBERS = 2**25

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class LinearMap:
    r"""A linear map :math:`A` between tensor spaces, matrix-free.

    :math:`\langle A x, y\rangle = \langle x, A^T y\rangle` for all :math:`x` of ``domain_shape`` and :math:`y` of
    ``range_shape``.

    >>> shift = LinearMap(lambda x: x.roll(1), lambda y: y.roll(-1), (3,), (3,))
    >>> shift.matrix().tolist()
    [[0.0, 0.0, 1.0], [1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]
    """

    apply: Function  #: the function :math:`x \mapsto A x` on one tensor of ``domain_shape``
    adjoint: Function  #: the function :math:`y \mapsto A^T y` on one tensor of ``range_shape``
    domain_shape: tuple[int, ...]  #: the shape of :math:`x`
    range_shape: tuple[int, ...]  #: the shape of :math:`A x`
    _: KW_ONLY
    dtype: torch.dtype = torch.float64  #: the dtype both functions work in
    device: torch.device | str = "cpu"  #: the device both functions work on
    apply_rows: Function | None = None  #: ``apply`` on a leading batch axis, where a faster way than ``vmap`` is known
    adjoint_rows: Function | None = None  #: the same for ``adjoint``

    @classmethod
    def from_function(
        cls,
        function: Function,
        domain_shape: tuple[int, ...],
        range_shape: tuple[int, ...] | None = None,
        dtype: torch.dtype = torch.float64,
        device: torch.device | str = "cpu",
    ) -> LinearMap:
        """Return the map of a torch function that is linear; its adjoint is its vector-Jacobian product at zero.

        Raises:
            InputError: if the value at zero is not zero (the function is affine, not linear), or its shape is
                not ``range_shape``.

        >>> LinearMap.from_function(lambda x: 2 * x[1:], (3,)).adjoint(torch.ones(2, dtype=torch.float64)).tolist()
        [0.0, 2.0, 2.0]
        """
        zero = torch.zeros(domain_shape, dtype=dtype, device=device)
        value, pull = cast("tuple[Tensor, Callable[[Tensor], tuple[Tensor]]]", torch.func.vjp(function, zero))
        if range_shape is not None and tuple(value.shape) != tuple(range_shape):
            raise InputError(
                f"Expected a linear map into {tuple(range_shape)}, but the function returned shape "
                f"{tuple(value.shape)}. Pass the range_shape it has, or none."
            )
        if bool(value.detach().ne(0).any()):
            raise InputError(
                "Expected a linear function, but this one is not zero at zero. Remove its constant (bias) first."
            )

        def adjoint(y: Tensor) -> Tensor:
            return pull(y)[0].detach()

        def apply(x: Tensor) -> Tensor:
            with torch.no_grad():
                return function(x)

        return cls(apply, adjoint, tuple(domain_shape), tuple(value.shape), dtype=dtype, device=device)

    @classmethod
    def of_batches(
        cls,
        apply: Function,
        adjoint: Function,
        domain_shape: tuple[int, ...],
        range_shape: tuple[int, ...],
        like: Tensor,
    ) -> LinearMap:
        """Return the map of functions on a leading batch axis, in the dtype and on the device of a tensor."""
        single = (lambda x: apply(x.unsqueeze(0)).squeeze(0), lambda y: adjoint(y.unsqueeze(0)).squeeze(0))
        rows = {"apply_rows": apply, "adjoint_rows": adjoint}
        return cls(*single, domain_shape, range_shape, dtype=like.dtype, device=like.device, **rows)

    @classmethod
    def from_matrix(cls, matrix: Tensor) -> LinearMap:
        """Return the map of a matrix (rows: range, columns: domain).

        >>> LinearMap.from_matrix(torch.eye(2)).apply(torch.tensor([1.0, 2.0])).tolist()
        [1.0, 2.0]
        """
        if matrix.ndim != 2:
            raise InputError(f"Expected a matrix, got a tensor of shape {tuple(matrix.shape)}. Reshape it first.")
        A = matrix.detach()
        return cls(
            lambda x: A @ x,
            lambda y: A.mT @ y,
            (A.shape[1],),
            (A.shape[0],),
            dtype=A.dtype,
            device=A.device,
            apply_rows=lambda X: X @ A.mT,
            adjoint_rows=lambda Y: Y @ A,
        )

    @property
    def domain_dimension(self) -> int:
        """Return the dimension of the domain."""
        return math.prod(self.domain_shape)

    @property
    def range_dimension(self) -> int:
        """Return the dimension of the range space."""
        return math.prod(self.range_shape)

    @property
    def transpose(self) -> LinearMap:
        r"""Return the map :math:`A^T`."""
        return replace(
            self,
            apply=self.adjoint,
            adjoint=self.apply,
            domain_shape=self.range_shape,
            range_shape=self.domain_shape,
            apply_rows=self.adjoint_rows,
            adjoint_rows=self.apply_rows,
        )

    def scaled(self, factor: float) -> LinearMap:
        """Return the map :math:`c A`.

        >>> LinearMap.from_matrix(torch.eye(2)).scaled(3.0).apply(torch.tensor([1.0, 2.0])).tolist()
        [3.0, 6.0]
        """
        # the vector first: its image under A may leave the float range
        functions = {name: getattr(self, name) for name in ("apply", "adjoint", "apply_rows", "adjoint_rows")}
        known = {name: lambda x, f=f: f(x * factor) for name, f in functions.items() if f is not None}
        return replace(self, **known)  # type: ignore[arg-type]

    def apply_batch(self, X: Tensor) -> Tensor:
        """Return :math:`A x_i` for every row of a batch ``(b, *domain_shape)``."""
        return batched(self.apply, self.apply_rows, X)

    def adjoint_batch(self, Y: Tensor) -> Tensor:
        """Return :math:`A^T y_i` for every row of a batch ``(b, *range_shape)``."""
        return batched(self.adjoint, self.adjoint_rows, Y)

    def matrix(self) -> Tensor:
        """Return the dense matrix ``(range_dimension, domain_dimension)``, built on the smaller side in chunks."""
        if self.domain_dimension <= self.range_dimension:
            return _columns(self.apply_batch, self.domain_shape, self.range_dimension, self.dtype, self.device).mT
        return _columns(self.adjoint_batch, self.range_shape, self.domain_dimension, self.dtype, self.device)


def images(function: Function, shape: tuple[int, ...]) -> Tensor:
    """Return the images of the standard basis under a linear function in float64, one per row, flattened.

    >>> images(lambda x: x[1:], (2,)).tolist()
    [[0.0], [1.0]]
    """
    basis = torch.eye(math.prod(shape), dtype=torch.float64).reshape(-1, *shape)
    with torch.no_grad():
        return batched(function, None, basis).reshape(len(basis), -1)


def batched(single: Function, batch: Function | None, X: Tensor) -> Tensor:
    """Return ``single`` on every row: by the known batch function, by ``vmap``, else by a loop."""
    if batch is not None:
        return batch(X)
    if len(X) == 1:
        return single(X[0]).unsqueeze(0)
    try:
        with quiet_vmap():
            return torch.func.vmap(single)(X)
    except (RuntimeError, ValueError, NotImplementedError):  # no batching rule, data-dependent code, in-place writes
        return torch.stack([single(x) for x in X])


def pulled(out: Tensor, targets: Sequence[Tensor], seeds: Tensor) -> list[Tensor]:
    """Return ``J^T u`` of each target for several u, one per row: at once, or one by one where an operation forbids it.

    >>> x = torch.ones(2, requires_grad=True)
    >>> pulled(3 * x, [x], torch.eye(2))
    [tensor([[3., 0.],
            [0., 3.]])]
    """
    rest: dict[str, Any] = {"retain_graph": True, "allow_unused": True}
    try:
        with quiet_vmap():
            found: Sequence[Tensor | None] = torch.autograd.grad(out, targets, seeds, is_grads_batched=True, **rest)
    except RuntimeError:
        each = zip(*(torch.autograd.grad(out, targets, u, **rest) for u in seeds), strict=True)
        found = [None if rows[0] is None else torch.stack(rows) for rows in each]
    none = [t.detach().new_zeros(1, 1).expand(len(seeds), t.numel()) for t in targets]
    return [z if g is None else g.detach().reshape(z.shape) for z, g in zip(none, found, strict=True)]


def _columns(
    batch: Function, shape: tuple[int, ...], other_dimension: int, dtype: torch.dtype, device: torch.device | str
) -> Tensor:
    """Return the images of the standard basis of ``shape``, one per row, flattened."""
    dimension = math.prod(shape)
    rows = torch.empty(dimension, other_dimension, dtype=dtype, device=device)
    step = max(1, CHUNK_NUMBERS // max(1, dimension, other_dimension))
    for start in range(0, dimension, step):
        stop = min(start + step, dimension)
        basis = torch.zeros(stop - start, dimension, dtype=dtype, device=device)
        basis.diagonal(offset=start).fill_(1)
        rows[start:stop] = batch(basis.reshape(stop - start, *shape)).reshape(stop - start, other_dimension)
    return rows
