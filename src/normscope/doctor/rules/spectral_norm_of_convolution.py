"""NS505: a spectrally normalized convolution with a norm above one."""

import math

from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject
from normscope.doctor.rules.unconverged_spectral_norm import spectrally_normalized
from normscope.operators.normalizers.spectral_norm import convolution_certificate

#: Norm at which a convolution is reported.
ABOVE = 1.01


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each spectrally normalized convolution with an attained norm above one."""
    for layer, op in spectrally_normalized(subject):
        if op.kind != "convolution":
            continue
        found = subject.norms.norm(layer.inputs[0], layer)
        attained = math.exp(found.log_lower)
        if attained <= ABOVE:
            continue
        data = op.data
        evidence: dict[str, float | int | str] = {"attained": attained, "at_most": math.exp(found.log_upper)}
        bound = ""
        if not data.get("transposed"):
            certified = convolution_certificate(data["weight"], data["stride"], data["dilation"], data["groups"])
            evidence["certificate"] = certified
            bound = f" (spectral normalization certifies {certified:.3g} at this kernel and stride)"
        text = f"this convolution is spectrally normalized, yet its norm is at least {attained:.4g}{bound}"
        yield rule.finding(op.owner, text, evidence)


RULE = Rule(
    code="NS505",
    title="spectrally normalized convolution is not 1-Lipschitz",
    severity=Severity.INFO,
    certainty=Certainty.PROVED,
    statement="normscope Proposition SN-2",
    why="Spectral normalization divides by the norm of the kernel reshaped to a matrix, not of the convolution. The "
    "convolution's own norm is up to sqrt(kh kw) times larger (3 for a 3x3 kernel), so a network built of such layers "
    "is not 1-Lipschitz, and the certificate grows exponentially with depth.",
    effect="a network of such layers is not 1-Lipschitz: certificates based on that are invalid",
    fix="divide the weight by sqrt(kh kw), or normalize by the norm of the convolution itself",
    example="model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 3, padding=1)))\n"
    "options = {'input_shape': (8, 6, 6)}",
    good="model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))",
    threads=("pytorch/pytorch/issues/99149", "pfnet-research/sngan_projection/issues/37"),
)
