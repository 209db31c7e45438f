"""Instance normalization: each channel of each sample is normalized over its positions.

Its constants are those of group normalization with as many groups as channels.
"""

from typing import Any

from torch import nn

from normscope.operators.normalizer import Normalizer, Symmetry, spread_constants
from normscope.operators.normalizers.batch_norm import running_constants
from normscope.operators.normalizers.group_norm import GROUP_PRINTED
from normscope.operators.registry import Call, rule
from normscope.operators.spread_division import Spread, fixed_statistics, normalizer, per_channel


def instance_spread(shape: tuple[int, ...], eps: float) -> Spread:
    """Return how an input of a shape (samples, channels, *positions) is divided."""
    return Spread(shape, tuple(range(2, len(shape))), eps, True, channel_axis=1)


@rule("instance_norm")
def instance_norm(call: Call) -> Any:
    """InstanceNorm: one channel of one sample; with running statistics it is a fixed affine map."""
    x = call["input"]
    gamma, beta = (per_channel(call[name], len(x.shape)) for name in ("weight", "bias"))
    if not call["use_input_stats"]:
        return fixed_statistics(call, x, call["running_mean"], call["running_var"], float(call["eps"]), gamma, beta)
    return normalizer(call, x, instance_spread(x.shape, float(call["eps"])), "instance_norm", gamma, beta)


NORMALIZER = Normalizer(
    kind="instance_norm",
    formula="gamma (x - mean)/sqrt(var + eps) + beta, statistics of one channel of one sample",
    constants=spread_constants("normscope F5", GROUP_PRINTED, fixed=running_constants),
    ops=("instance_norm",),
    modules=(nn.modules.instancenorm._InstanceNorm,),
    module_spread=lambda module, shape: instance_spread(shape, module.eps),
    symmetry=Symmetry("neuron", shift=True),
    adaptive="adaptive_instance_norm",
    claims=lambda match, spread: match.centered and len(spread.view) == 4 and spread.axes == (2, 3),
)
