"""NS501: a channel that alone determines the Lipschitz constant of its layer."""

import math

import torch
from torch import Tensor

from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.operators.expression import Expr, LinearOp, linear
from normscope.operators.site import Site

#: Factors by which the constant must fall without the channel, for a remark and for a warning.
REPORTED, SEVERE = 10.0, 100.0
#: What is left of a channel that is removed, so that the remaining norm is not underestimated.
LEFT = 1e-6
#: Fewest channels to compare.
FEWEST = 4


def channel_gains(site: Site) -> Tensor | None:
    """Return ``|gamma_c| / sqrt(v_c + eps)`` of fixed statistics, or ``|gamma_c|``; ``None`` without either."""
    if site.running is not None:
        variance = site.running[1].detach().double().flatten()
        gamma = torch.ones_like(variance) if site.gamma is None else site.gamma.detach().double().flatten()
        return gamma.abs() * (variance + site.eps).rsqrt()
    return None if site.gamma is None else site.gamma.detach().double().flatten().abs()


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each normalizer, or layer folded with one, that one channel dominates."""
    program = subject.program
    layers = {e.id: e for e in program.layers}
    for site in subject.sites():
        gains = channel_gains(site)
        if gains is None or gains.numel() < FEWEST:
            continue
        before, out = program.ends[site.node]
        layer = layers.get(before.id) if site.running is not None and out is not None else None
        if layer is None or out is None:
            found = _of_gains(gains)
        else:
            found = _folded(subject, layer, out, gains)
        if found is None or found[1] < REPORTED:
            continue
        channel, factor, whole = found
        what = f"{place_of(site)} folded with {layer.op.owner}" if layer is not None and layer.op else place_of(site)
        yield rule.finding(
            place_of(site),
            f"channel {channel} alone determines the constant of {what}: without it, {whole:.3g} falls by a factor of "
            f"at least {factor:.3g}",
            {"channel": channel, "factor": factor, "constant": whole, "channels": gains.numel()},
            severity=Severity.WARNING if factor >= SEVERE and math.isfinite(factor) else Severity.INFO,
        )


def _of_gains(gains: Tensor) -> tuple[int, float, float] | None:
    """Return the channel with the largest gain, its ratio to the next, and the gain."""
    top, where = gains.topk(2)
    if float(top[0]) == 0:
        return None
    second = float(top[1])
    return int(where[0]), math.inf if second == 0 else float(top[0]) / second, float(top[0])


def _folded(subject: Subject, layer: Expr, out: Expr, gains: Tensor) -> tuple[int, float, float] | None:
    """Return the leading channel of a layer folded with fixed statistics, and the certified gain of removing it."""
    op = layer.op
    if op is None:
        return None
    weight = op.data["weight"].detach().double()
    rows = weight.transpose(0, 1) if op.data.get("transposed") else weight
    if rows.shape[0] != gains.numel():
        return None
    channel = _of_gains(gains * rows.flatten(1).norm(dim=1))
    if channel is None or channel[1] < REPORTED:
        return None  # removing a channel whose row is not much longer than the next cannot gain that much
    axis = 1 if len(out.shape) > 1 else 0
    mask = torch.ones([n if i == axis else 1 for i, n in enumerate(out.shape)], dtype=torch.float64)
    mask.flatten()[channel[0]] = LEFT
    rest = linear(LinearOp("diagonal", lambda z: z * mask.to(z), None, {"scale": mask}), [out], out.shape)
    whole, less = (subject.norms.norm(layer.inputs[0], e) for e in (out, rest))
    if math.isinf(whole.log_lower) or math.isinf(less.log_upper):
        return None
    return channel[0], math.exp(whole.log_lower - less.log_upper), math.exp(whole.log_upper)


RULE = Rule(
    code="NS501",
    title="one channel determines a layer's constant",
    severity=Severity.INFO,
    certainty=Certainty.PROVED,
    statement="normscope F1",
    why="The constant of a layer folded with its normalizer is that of its steepest direction. If one channel with a "
    "tiny variance or a large scale is many times steeper than all others, it alone determines how sensitive the layer "
    "is, and quantization and half precision must cover its range.",
    effect="one channel determines how sensitive the layer is; quantization must cover its range",
    fix="inspect the channel: remove it if it is dead on the data, clip its scale, or keep training",
    example="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)).eval()\n"
    "model[1].running_var.fill_(1.0)\n"
    "model[1].running_var[7] = 1e-4",
    good="model = nn.Sequential(nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)).eval()",
    slow=True,
)
