"""Spectrum modulo symmetries: the smallest eigenvalue that is not a known zero, and the condition number."""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from normscope.core import memory
from normscope.core.errors import InputError
from normscope.curvature.cost import plan
from normscope.curvature.directions import Directions
from normscope.curvature.gram import Gram, gram_of
from normscope.curvature.problem import Problem
from normscope.curvature.products import Products
from normscope.linalg.thick_restart import FEWEST, eigenpairs

#: Eigenvalues below this share of the largest count as zero (float64, known directions projected out).
ZERO = 1e-10
#: Directions that contribute less than this share of the trace are flat.
EXACT = 1e-14
#: Parameters up to which the whole matrix is computed.
DENSE = 5000
#: Outputs (samples times classes) up to which the matrix of inner products of their gradients is computed.
DUAL = 5000
#: Multiplications up to which it is computed by default: some minutes.
WORK = 1e13
#: Share of the free memory it may use.
SHARE = 0.8


@dataclass(frozen=True)
class QuotientSpectrum:
    """The spectrum of a matrix on the complement of known symmetry directions."""

    method: str  #: ``dense``, ``dual`` or ``lanczos``
    largest: float  #: largest eigenvalue on the quotient
    #: the nonzero eigenvalue of smallest absolute value; NaN if some are negative and only the ends of the spectrum are
    #: known
    smallest: float
    condition: float  #: the largest absolute value over the smallest
    explained: int  #: dimension of the known symmetries
    #: further zero eigenvalues, such as dead units or more parameters than the data determine; ``None`` if they cannot
    #: be counted this way
    unexplained: int | None
    negative: int | None  #: eigenvalues below zero; ``None`` if they cannot be counted
    converged: bool  #: whether the smallest eigenvalue is reliable
    spectrum: np.ndarray | None = None  #: every eigenvalue on the quotient, if all are known, ascending


def quotient(
    problem: Problem,
    directions: Directions,
    *,
    matrix: str = "ggn",
    sphere: bool = False,
    method: str | None = None,
    max_products: int = 400,
) -> QuotientSpectrum:
    r"""Return the extreme eigenvalues of ``P A P`` on the range of ``P``, the complement of the symmetry directions.

    For a scale group, :math:`H = P H P - (g \hat w^T + \hat w g^T)/\|w\|`: off stationary points the second
    term alone has the eigenvalues :math:`\pm\|g\|/\|w\|`, curvature of the parametrization and not of the function.
    Projecting removes it.

    Args:
        problem: the loss, entered as a context; float64 is needed to tell small eigenvalues from zero.
        directions: known symmetry directions at the point.
        matrix: ``ggn`` or ``hessian``.
        sphere: measure in coordinates in which every scale group has length one, so that rescaling changes nothing.
        method: ``dense``, ``dual`` (Gauss-Newton only) or ``lanczos``; by default the first that is affordable.
        max_products: the most products of the Lanczos method.
    """
    products = Products(problem, matrix, "recompute")
    rows = gram_of(products) if method == "dual" else None
    if method is None:
        method, rows = affordable(products, sphere=sphere)
    if method == "dense":
        return _dense(Products(problem, matrix), directions, sphere=sphere)
    if method == "dual":
        if rows is None:
            raise InputError("The dual method needs a loss that is a sum over samples, convex in their outputs.")
        return _dual(rows, directions)
    return _lanczos(problem, matrix, directions, sphere=sphere, max_products=max_products)


def affordable(products: Products, *, sphere: bool = False) -> tuple[str, Gram | None]:
    """Return the most exact method that is affordable, with the Gram matrix if it is ``dual``.

    Args:
        products: with the matrix.
        sphere: whether in coordinates of the spheres, for which there is no dual method.
    """
    problem = products.problem
    if problem.dimension <= DENSE:
        return "dense", None
    if products.matrix in ("hessian", "residual") or sphere:
        return "lanczos", None
    with torch.no_grad():
        outputs = sum(problem.prediction(problem.outputs(problem.leaves(), t)).numel() for t in problem.terms)
    found = gram_of(products) if outputs <= DUAL else None
    if found is None or found.work > WORK or found.bytes > SHARE * memory.available():
        return "lanczos", None
    return "dual", found


def _dense(products: Products, directions: Directions, *, sphere: bool) -> QuotientSpectrum:
    """Compute the whole matrix on an orthonormal basis of the complement."""
    full = products.dense()
    if sphere:
        full = directions.lengths[:, None] * full * directions.lengths[None, :]
    known = directions.basis()
    if len(known):
        complement = torch.linalg.qr(known.mT, mode="complete")[0][:, len(known) :]
        full = complement.mT @ full @ complement
    values = torch.linalg.eigvalsh((full + full.mT) / 2).cpu().numpy()
    return _summary("dense", values, directions.count, len(values))


def _summary(method: str, values: np.ndarray, explained: int, dimension: int) -> QuotientSpectrum:
    """Summarize a complete list of eigenvalues; the remaining ones up to ``dimension`` are zero."""
    scale = float(np.abs(values).max(initial=0.0))
    other = values[np.abs(values) > ZERO * scale]
    if not len(other):
        return QuotientSpectrum(method, 0.0, 0.0, math.nan, explained, dimension, 0, True, values)
    smallest = float(other[np.argmin(np.abs(other))])
    largest = float(other.max())
    negative = int((other < 0).sum())
    condition = float(np.abs(other).max()) / abs(smallest)
    return QuotientSpectrum(
        method, largest, smallest, condition, explained, dimension - len(other), negative, True, np.sort(values)
    )


def _dual(rows: Gram, directions: Directions) -> QuotientSpectrum:
    r"""Compute the non-zero spectrum of :math:`P J^T S J P` from the smaller matrix :math:`S^{1/2} J P J^T S^{1/2}`."""
    matrix = rows.matrix()
    if directions.count and float(rows.pushed([directions.random()]).square().sum()) > EXACT * float(matrix.trace()):
        along = rows.pushed(directions.vectors()).double()  # an eps breaks the symmetry: the directions are not flat
        matrix.addmm_(along, along.mT, alpha=-1.0)
    values = torch.linalg.eigvalsh(matrix).cpu().numpy()
    return _summary("dual", values, directions.count, rows.products.dimension - directions.count)


def _lanczos(
    problem: Problem, matrix: str, directions: Directions, *, sphere: bool, max_products: int
) -> QuotientSpectrum:
    """Compute both ends by Lanczos; the lower end converges slowly, and is marked if it has not."""
    steps = min(max_products, problem.dimension - directions.count)
    planned = plan(problem, steps, (4 + FEWEST, max(4 + FEWEST, steps + 3)))
    products = Products(problem, matrix, planned.way)

    def apply(vector: Tensor) -> Tensor:
        return directions.on_sphere(products(directions.on_sphere(vector)))

    found = eigenpairs(
        apply if sphere else products, problem.random(0), largest=1, smallest=1, tolerance=1e-3,
        max_products=steps, size=planned.vectors - 3, project=directions.project,
    )  # fmt: skip
    largest, smallest = float(found.values[0]), float(found.values[-1])
    if smallest < -ZERO * abs(largest):  # the eigenvalues near zero are inside the spectrum
        smallest = math.nan
    known = smallest > ZERO * largest  # otherwise there are zero modes besides the known ones
    condition = largest / smallest if known else math.nan
    sure = bool(found.converged.all()) and known
    return QuotientSpectrum("lanczos", largest, smallest, condition, directions.count, None, None, sure)
