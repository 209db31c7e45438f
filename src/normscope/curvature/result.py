"""What a measurement of curvature found, as plain data with a JSON form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from normscope.core.display import Shown
from normscope.core.files import Stored
from normscope.core.result import Rows


@dataclass(frozen=True)
class Eigenvalue:
    """One eigenvalue."""

    value: float  #: the Ritz value; the largest is attained, so it is a lower bound of the true one up to rounding
    residual: float  #: an eigenvalue lies within this distance
    error: float  #: estimated error, the residual squared over the gap
    converged: bool  #: whether the residual is within the requested tolerance


@dataclass(frozen=True)
class LayerCurvature:
    """The diagonal block of one parameter."""

    name: str  #: of the parameter
    parameters: int  #: its number of entries
    trace: float  #: of its block, an estimate
    low: float  #: lower end of the 95 % interval
    high: float  #: upper end


@dataclass(frozen=True, repr=False)
class CurvatureResult(Stored, Shown):
    """What ``curvature`` found."""

    _kind = "curvature"
    _layout = ("normscope.report.curvature", "curvature_sections")
    _rows = "largest"

    model: dict[str, Any]  #: name, class, number of parameters
    data: dict[str, Any]  #: samples, batches, dropout masks
    mode: str  #: what BatchNorm did: ``batch``, ``running`` or ``frozen-batch``
    matrix: str  #: ``hessian``, ``ggn``, ``fisher``, ``empirical-fisher`` or ``residual``
    loss: float  #: at this point
    gradient_norm: float  #: at this point
    largest: tuple[Eigenvalue, ...] = ()  #: largest eigenvalues, descending
    smallest: tuple[Eigenvalue, ...] = ()  #: smallest eigenvalues, ascending
    trace: dict[str, float] | None = None  #: value, low, high, probes
    frobenius: float | None = None  #: estimate of the Frobenius norm
    stable_rank: float | None = None  #: ``||A||_F^2/||A||^2``
    layers: Rows[LayerCurvature] = field(default_factory=Rows)  #: trace by parameter
    density: dict[str, Any] | None = None  #: quantiles and shares of the spectrum
    symmetry: dict[str, Any] = field(default_factory=dict)  #: known flat directions, and what they remove
    quotient: dict[str, Any] | None = None  #: spectrum modulo symmetries, if it was computed
    sharpness: dict[str, Any] = field(default_factory=dict)  #: measures of sharpness by name
    modes: dict[str, Any] = field(default_factory=dict)  #: largest eigenvalue in each mode of BatchNorm, if requested
    checks: dict[str, float] = field(default_factory=dict)  #: symmetry of the products and a difference of gradients
    cost: dict[str, Any] = field(default_factory=dict)  #: products, way, memory
    messages: tuple[str, ...] = ()  #: notes on the numbers
    stopped: bool = False  #: whether the user stopped the work; what is missing was not computed

    @property
    def converged(self) -> bool:
        """Return whether every eigenvalue has converged."""
        return bool(self.largest) and all(e.converged for e in (*self.largest, *self.smallest))
