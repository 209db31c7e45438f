"""NS307: numbers that the precision cannot represent."""

import math

import torch

from normscope.doctor.precision import PrecisionLoss
from normscope.doctor.rule import Certainty, Finding, Findings, Rule, Severity, Subject
from normscope.doctor.second_run import precision_run
from normscope.graph.ir import Graph
from normscope.graph.recognise import name_of
from normscope.graph.weights_validation import STATISTICS, named_tensors

#: Precisions narrower than float32.
_HALF = (torch.float16, torch.bfloat16)
_FIXES = {
    "overflow": "scale it down first (a normalizer, a smaller weight), keep this layer in float32, or use bfloat16",
    "underflow": "compute it in float32, or with larger numbers",
    "cancellation": "subtract the mean first, then average the squares: (x - mean).square().mean(); or compute it in "
    "float64",
    "rounding": "compute this layer in float32",
}


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield weights and statistics beyond the range of the planned precision, otherwise the first lost value."""
    planned = subject.dtype if subject.dtype in _HALF else None
    beyond = [] if planned is None else list(_beyond(rule, subject, planned))
    yield from beyond
    if beyond or subject.non_finite:
        return
    wide = None
    if planned is None:
        wide = subject.second_run.wide
    elif subject.planned is not None:
        wide = precision_run(subject.planned, subject.batch or subject.captured.example)
    loss = None if wide is None else wide.first()
    if wide is not None and loss is not None:
        yield _finding(rule, wide.graph, loss)


def _beyond(rule: Rule, subject: Subject, dtype: torch.dtype) -> Findings:
    """Yield the parameters and running statistics that are infinite in another precision."""
    largest, name = torch.finfo(dtype).max, str(dtype).removeprefix("torch.")
    parameters = {n for n, _ in subject.model.named_parameters()}
    for path, tensor in named_tensors(subject.model):
        if not tensor.is_floating_point() or not (path in parameters or path.endswith(STATISTICS)):
            continue
        plain = tensor.detach()
        lost = int((torch.isfinite(plain) & torch.isinf(plain.to(dtype))).sum())
        if lost:
            owner, _, kind = path.rpartition(".")
            effect = "its channels keep only their shift" if kind == "running_var" else "outputs are infinite or NaN"
            yield rule.finding(
                owner,
                f"{lost} of {tensor.numel()} entries of {kind} exceed the largest {name} ({largest:g}) and become "
                f"infinite: they reach {float(plain.abs().max()):.4g}; {effect}",
                {"entries": lost, "of": tensor.numel(), "largest": float(plain.abs().max()), "dtype": name},
                severity=Severity.ERROR,
                certainty=Certainty.PROVED,
                fix=f"keep this layer in float32, or scale down the layer before it: {kind} does not fit into {name}",
            )


def _finding(rule: Rule, graph: Graph, loss: PrecisionLoss) -> Finding:
    node = loss.node
    dtype = node.dtype or "its precision"
    off = f"the result of {name_of(node)} in {dtype} is off by {min(loss.error, 1e6):.0%} of its size"
    if loss.kind == "overflow":
        largest = torch.finfo(getattr(torch, node.dtype, torch.float32)).max
        text = f"{name_of(node)} overflows {dtype}: values reach {loss.reached:.4g}, and the largest is {largest:g}"
    elif math.isinf(loss.error):
        text = f"the result of {name_of(node)} is not finite in {dtype} but finite in float64"
    elif loss.kind == "cancellation":
        text = f"{off}: {name_of(graph[loss.at])} reads numbers of size {loss.reached:.3g} that differ by "
        text += f"{loss.left:.2g}, so that few or none of the digits of {dtype} are left"
    elif loss.kind == "underflow":
        text = f"{off}: many entries are zero in {dtype} but not in float64"
    else:
        text = f"{off}, compared with float64"
    evidence: dict[str, float | int | str] = {"operation": name_of(node), "dtype": dtype, "reached": loss.reached}
    if math.isfinite(loss.error):
        evidence["error"] = loss.error
    return rule.finding(
        node.owner or node.name,
        text,
        evidence,
        severity=Severity.ERROR if math.isinf(loss.error) else None,
        fix=_FIXES[loss.kind],
    )


_NORM = (
    "class Norm(nn.Module):\n"
    "    def forward(self, x):\n"
    "        mean = x.mean(-1, keepdim=True)\n"
    "        variance = {}\n"
    "        return (x - mean) / (variance.clamp_min(0) + 1e-10).sqrt()\n\n\n"
    "model = nn.Sequential(Norm(), nn.Linear(8, 2))\n"
    "data = 100 + 1e-3 * torch.randn(64, 8)"
)

RULE = Rule(
    code="NS307",
    title="precision too low for the values",
    certainty=Certainty.MEASURED,
    statement="E x^2 - (E x)^2 loses log10((E x)^2 / Var x) digits; float16 ends at 65504",
    why="A few samples are run in the precision of the model, or in the planned one (dtype=), and in float64. A "
    "running variance above 65504 is infinite in float16, and its channel becomes zero; activations overflow; a "
    "variance computed as the mean of squares minus the squared mean is noise where the mean is far larger than the "
    "spread, and so is anything divided by its root.",
    effect="the network no longer computes the function it was trained for, or returns NaN",
    fix="compute this layer in a wider precision, or rewrite it so that nothing cancels or overflows",
    example=_NORM.format("x.pow(2).mean(-1, keepdim=True) - mean.pow(2)"),
    good=_NORM.format("(x - mean).pow(2).mean(-1, keepdim=True)"),
    threads=("k2-fsa/sherpa-onnx/pull/3857", "apple/coreai-torch/pull/54", "huggingface/transformers/issues/5651"),
)
