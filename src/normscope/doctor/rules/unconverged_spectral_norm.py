"""NS506: spectral normalization whose power iteration has not converged."""

import torch
from torch import Tensor

from normscope.doctor.rule import Certainty, Findings, Rule, Subject, layer_of
from normscope.operators.expression import Expr, LinearOp

#: Norm of a normalized weight at which the iteration has not converged.
ABOVE = 1.1
#: Steps of our own power iteration.
_STEPS = 60


def spectrally_normalized(subject: Subject) -> list[tuple[Expr, LinearOp]]:
    """Return the layers with a spectrally normalized weight, and their operations."""
    owners = {layer_of(s) for s in subject.weight_sites() if s.kind == "spectral_norm"}
    return [(layer, op) for layer in subject.program.layers if (op := layer.op) is not None and op.owner in owners]


def attained_norm(weight: Tensor) -> float:
    """Return a lower bound on the spectral norm of a weight reshaped to a matrix, by a power iteration.

    >>> attained_norm(torch.diag(torch.tensor([3.0, 1.0])))
    3.0
    """
    matrix = weight.detach().double().flatten(1)
    x = matrix.T @ torch.ones(matrix.shape[0], dtype=matrix.dtype, device=matrix.device)
    best = 0.0
    for _ in range(_STEPS):
        length = float(x.norm())
        if length == 0:
            return best
        y = matrix @ (x / length)
        best = max(best, float(y.norm()))
        x = matrix.T @ y
    return best


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield every spectrally normalized weight with a norm above one."""
    for _, op in spectrally_normalized(subject):
        weight = op.data["weight"]
        norm = attained_norm(weight.transpose(0, 1) if op.data.get("transposed") else weight)
        if norm >= ABOVE:
            yield rule.finding(
                op.owner,
                f"the spectrally normalized weight has norm {norm:.3g} instead of 1: its power iteration has not "
                "converged",
                {"norm": norm},
            )


RULE = Rule(
    code="NS506",
    title="power iteration of spectral normalization has not converged",
    certainty=Certainty.PROVED,
    why="Spectral normalization divides by an estimate that one power iteration improves at every training step, and "
    "none in evaluation. Weights loaded without the vectors u and v, or changed in evaluation, are divided by an "
    "estimate for other weights.",
    effect="the layer is steeper than promised: a discriminator or an invertible network breaks in evaluation",
    fix="run some batches in train mode (or raise n_power_iterations), and load u and v with the weights",
    example="model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))\n"
    "nn.init.normal_(model[0].parametrizations.weight.original)\n"
    "model.eval()  # no power iteration from here on",
    good="model = nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8), n_power_iterations=200))\n"
    "nn.init.normal_(model[0].parametrizations.weight.original)\n"
    "model(torch.randn(4, 8))\n"
    "model.eval()",
    threads=("jarrelscy/iResnet/issues/2", "pytorch/pytorch/pull/59564"),
    explains=("NS505",),
)
