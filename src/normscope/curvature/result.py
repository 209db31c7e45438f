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
    converged: bool  #: whether the residual is as small as was asked for


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
    """What ``curvature`` found.

    Attributes:
        model: name, class, number of parameters.
        data: samples, batches, dropout masks.
        mode: what BatchNorm did: ``batch``, ``running`` or ``frozen-batch``.
        matrix: ``hessian``, ``ggn``, ``fisher``, ``empirical-fisher`` or ``residual``.
        loss: at this point.
        gradient_norm: at this point.
        largest: largest eigenvalues, descending.
        smallest: smallest eigenvalues, ascending.
        trace: value, low, high, probes.
        frobenius: estimate of the Frobenius norm.
        stable_rank: ``||A||_F^2/||A||^2``.
        layers: trace by parameter.
        density: quantiles and shares of the spectrum.
        symmetry: known flat directions, and what they remove.
        quotient: spectrum modulo symmetries, if it was computed.
        sharpness: measures of sharpness by name.
        modes: largest eigenvalue in each mode of BatchNorm, if asked for.
        checks: symmetry of the products and a difference of gradients.
        cost: products, way, memory.
        messages: notes on the numbers.
        stopped: whether the user stopped the work; what is missing was not computed.
    """

    _kind = "curvature"
    _layout = ("normscope.report.curvature", "curvature_sections")
    _rows = "largest"

    model: dict[str, Any]
    data: dict[str, Any]
    mode: str
    matrix: str
    loss: float
    gradient_norm: float
    largest: tuple[Eigenvalue, ...] = ()
    smallest: tuple[Eigenvalue, ...] = ()
    trace: dict[str, float] | None = None
    frobenius: float | None = None
    stable_rank: float | None = None
    layers: Rows[LayerCurvature] = field(default_factory=Rows)
    density: dict[str, Any] | None = None
    symmetry: dict[str, Any] = field(default_factory=dict)
    quotient: dict[str, Any] | None = None
    sharpness: dict[str, Any] = field(default_factory=dict)
    modes: dict[str, Any] = field(default_factory=dict)
    checks: dict[str, float] = field(default_factory=dict)
    cost: dict[str, Any] = field(default_factory=dict)
    messages: tuple[str, ...] = ()
    stopped: bool = False

    @property
    def converged(self) -> bool:
        """Return whether every eigenvalue has converged."""
        return bool(self.largest) and all(e.converged for e in (*self.largest, *self.smallest))
