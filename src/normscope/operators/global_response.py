"""Global response normalization (ConvNeXt v2): ``x * N(x)`` with ``N_c = ||x_c|| / (mean_c ||x_c|| + eps)``."""

from __future__ import annotations

import math

from normscope.operators.expression import Expr
from normscope.operators.nonlinear import Context, Lip, Nonlinear, Range, product
from normscope.operators.normalizers.response_norm import response_core_global
from normscope.operators.registry import Call


class GlobalResponse(Nonlinear):
    """The nonlinear part of global response normalization over C channels, with its global constant."""

    def __init__(self, x: Expr, channels: int) -> None:
        self.inputs, self.channels = (x,), channels

    def constant(self, context: Context) -> Lip:
        """Return the global constant times that of the input."""
        return context.lipschitz(self.inputs[0]).scaled(math.log(response_core_global(self.channels)))

    def image(self, context: Context) -> Range:
        """Return the range of the input times C, the most an entry can grow."""
        inside = context.range(self.inputs[0])
        c = float(self.channels)
        return Range(-product(c, inside.sup), product(c, inside.sup), product(c, inside.row), product(c, inside.norm))


def global_response(call: Call, x: Expr, channels: int) -> Expr:
    """Return ``x * N(x)``."""
    return call.atom(GlobalResponse(x, channels), x.shape)
