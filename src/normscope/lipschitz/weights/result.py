"""What is known of each weight, as plain objects with a versioned JSON form."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import Any

from normscope.core.display import Shown
from normscope.core.files import Stored
from normscope.core.value import Value


@dataclass(frozen=True)
class WeightRow:
    """One weight."""

    name: str  #: the parameter's name
    shape: tuple[int, ...]  #: its shape
    uses: int  #: how many operations bring it together with what depends on the input
    operation: str  #: what those operations do with it: ``matrix``, ``convolution``, ``diagonal``, ...
    effective: bool  #: whether it is the weight as it acts, after its parametrization
    #: ``||h, y||`` with y the result of its uses, by domain: ``global``, ``variance_floor``, each also as ``..._small``
    #: for small changes where that is less
    outputs: dict[str, Value]
    #: the largest norm of ``dW -> dy`` over the data: ``||h_{i-1}||``, ``||H||_2``, unfolded patches
    input_norm: Value | None = None
    #: ``||h, W||`` over the data, by domain as in ``outputs``
    constants: dict[str, Value] = field(default_factory=dict)
    attained: Value | None = None  #: the largest ``||dh/dW||`` at a data point
    attained_output: Value | None = None  #: the largest ``||dh/dy||`` at a data point
    #: ``certified`` and ``attained`` of a batch as one input, and its ``input_norm``
    stacked: dict[str, Value] = field(default_factory=dict)
    printed: Value | None = None  #: Theorem 12 as printed
    #: whether it is at least what is proved (true), below what is attained (false), or neither
    printed_is_bound: bool | None = None
    unnormalized: Value | None = None  #: ``prod_{j != i} ||W_j|| ||x||``, for a plain chain without normalizers
    #: the normalizer that undoes its scale, so that no bound is uniform over its size
    scale_free: str | None = None
    notes: tuple[str, ...] = ()  #: what a reader must know

    @property
    def best(self) -> Value | None:
        """Return the smallest certified ``||h, W||`` over the data."""
        return min(self.constants.values(), key=lambda v: v.log, default=None)

    def unbounded(self, note: str) -> WeightRow:
        """Return the row with no bound and no attained value over the data, and a note that says why."""
        return replace(
            self,
            constants={key: replace(value, log=math.inf) for key, value in self.constants.items()},
            attained=None,
            stacked={k: replace(v, log=math.inf) for k, v in self.stacked.items() if k == "certified"},
            printed_is_bound=None,
            notes=(*self.notes, note),
        )


@dataclass(frozen=True, repr=False)
class WeightResult(Stored, Shown):
    """What ``weight_lipschitz`` found."""

    _kind = "weight-lipschitz"
    _layout = ("normscope.report.weight_lipschitz", "weight_sections")
    _rows = "weights"

    model: dict[str, Any]  #: name, class, parameters, front end, mode
    input: dict[str, Any]  #: blocks of the network input
    weights: tuple[WeightRow, ...]  #: every weight, in the order of use
    jointly: dict[str, Value]  #: all weights together: ``certified``, ``attained`` and the same of a stacked batch
    samples: dict[str, int]  #: data points used, and at how many the Jacobian was measured
    residual: float | None = None  #: largest relative residual of a singular pair behind the attained values
    messages: tuple[str, ...] = ()  #: notes on the numbers
