r"""Constants of activations that the bounds use: largest slope, largest curvature and value at zero."""

import math
from dataclasses import dataclass

from torch import nn

from normscope.core.rounding import up


@dataclass(frozen=True)
class Activation:
    r"""Constants of a function :math:`\phi` of one variable."""

    name: str  #: its usual name
    slope: float  #: ``a``, an upper bound of :math:`\sup |\phi'|`
    curvature: float  #: ``b``, an upper bound of :math:`\sup |\phi''|`; infinite where the slope jumps
    at_zero: float  #: :math:`|\phi(0)|`

    @property
    def smooth(self) -> bool:
        """Whether second derivatives are bounded, which the Hessian bound needs."""
        return math.isfinite(self.curvature)


#: sup |phi'| and sup |phi''| of the exact GELU are attained at sqrt(2) and at 0.
_GELU_SLOPE = 0.5 * (1.0 + math.erf(1.0)) + math.exp(-1.0) / math.sqrt(math.pi)
#: 1.09983932012..., rounded up; it has no closed form.
_SILU_SLOPE = 1.0998393202

IDENTITY = Activation("identity", 1.0, 0.0, 0.0)
#: Activations without settings, by their modules.
_FIXED: dict[type[nn.Module], Activation] = {
    nn.Identity: IDENTITY,
    nn.Tanh: Activation("tanh", 1.0, up(4.0 / (3.0 * math.sqrt(3.0))), 0.0),
    nn.Sigmoid: Activation("sigmoid", 0.25, up(1.0 / (6.0 * math.sqrt(3.0))), 0.5),
    nn.SiLU: Activation("silu", _SILU_SLOPE, 0.5, 0.0),
    nn.ReLU: Activation("relu", 1.0, math.inf, 0.0),
}


def activation_of(module: nn.Module) -> Activation | None:
    """Return the constants of an activation module, or ``None`` for a module that is not one of the known ones.

    The slope of ELU jumps at zero unless ``alpha`` is one, that of leaky ReLU unless it is linear. The constants of
    Softplus are those of the exact function; torch's drops by ``2e-9/beta`` where it becomes linear.

    >>> activation_of(nn.Tanh()).name, activation_of(nn.Linear(2, 2))
    ('tanh', None)
    >>> activation_of(nn.Softplus(2.0)).curvature, activation_of(nn.ELU(0.5)).smooth
    (0.5, False)
    """
    bases = [b for b in type(module).__mro__ if issubclass(b, nn.Module) and b.__module__.startswith("torch.nn.")]
    if type(module).forward is not bases[0].forward:  # a subclass that computes something else
        return None
    match module:
        case nn.GELU() if module.approximate == "none":
            return Activation("gelu", up(_GELU_SLOPE), up(2.0 / math.sqrt(2.0 * math.pi)), 0.0)
        case nn.Softplus() if module.beta * module.threshold >= 1 and module.threshold >= 20:
            beta = float(module.beta)
            return Activation("softplus", 1.0, beta / 4.0, up(math.log(2.0) / beta))
        case nn.ELU():
            alpha = float(module.alpha)
            return Activation("elu", max(1.0, abs(alpha)), 1.0 if alpha == 1.0 else math.inf, 0.0)
        case nn.LeakyReLU():
            slope = float(module.negative_slope)
            return Activation("leaky_relu", max(1.0, abs(slope)), 0.0 if slope == 1.0 else math.inf, 0.0)
    return next((found for kind, found in _FIXED.items() if isinstance(module, kind)), None)
