"""NS404: scales in half precision that are too coarse for the optimizer's steps."""

import torch

from normscope.doctor.modules import is_normalizer
from normscope.doctor.rule import Certainty, Findings, Rule, RunHistory, Subject

#: Steps after which a scale should have moved.
STEPS = 50
_BOUNDED = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Lion", "AdamW8bit")


def least_step(scale: torch.Tensor) -> float:
    """Return the smallest step that changes the median entry of a tensor: a quarter of the spacing above it.

    >>> least_step(torch.ones(4, dtype=torch.bfloat16))
    0.001953125
    """
    return float(torch.finfo(scale.dtype).eps) / 4 * float(scale.detach().float().abs().median())


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield normalizers whose scale is too coarse for the learning rate of an optimizer with bounded steps."""
    optimizer = type(subject.optimizer).__name__
    if optimizer not in _BOUNDED:
        return
    rates = subject.optimizer_settings("lr")
    for path, module in subject.model.named_modules():
        if not is_normalizer(module):
            continue
        for key, scale in module.named_parameters(recurse=False):
            half = scale.dtype in (torch.float16, torch.bfloat16)
            rate = rates.get(id(scale))
            if not half or rate is None or not scale.requires_grad or not 0 < rate < least_step(scale):
                continue
            name = str(scale.dtype).removeprefix("torch.")
            yield rule.finding(
                path,
                f"{key} is {name}: near {float(scale.detach().float().abs().median()):.3g} the smallest change is "
                f"{least_step(scale):.2g}, but a step of {optimizer} is about {rate:g}: it rounds to "
                "zero",
                {"rate": rate, "least": least_step(scale), "dtype": name},
            )


def check_history(rule: Rule, history: RunHistory) -> Findings:
    """Yield the scales that have not changed at all while other parts of the network have."""
    metrics = list(history.metrics("scale_moved"))
    trains = any(t.last > 0 for t in metrics) or any(t.last > 0 for t in history.metrics("angle"))
    for metric in metrics:
        first, passed = metric.steps[0], int(metric.steps[-1] - metric.steps[0])
        if metric.last == 0 and passed >= STEPS and trains:
            yield rule.finding(
                metric.place,
                f"its scale is exactly what it was at step {first}, {passed} steps ago, while others have moved: its "
                "steps round to zero, or no optimizer has it",
                {"steps": passed},
                certainty=Certainty.MEASURED,
                fix="keep the parameters of normalizers in float32, and check that they are in an optimizer group",
            )


RULE = Rule(
    code="NS404",
    title="scale that optimizer steps cannot change",
    certainty=Certainty.LIKELY,
    statement="1 - lr rounds to 1 if lr < eps/4",
    why="A scale starts at one, where bfloat16 has a spacing of 1/128. Adam's steps are about the learning rate: below "
    "1/512 each of them is rounded away. Weights start near zero, where the spacing is finer, and do move.",
    effect="normalizers are still at one after training, and the model is worse for it",
    fix="keep the parameters in float32 (autocast, or a master copy), at least those of normalizers",
    example="model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8)).bfloat16()\n"
    "optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)",
    good="model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))\n"
    "optimizer = torch.optim.Adam(model.parameters(), lr=1e-4)",
    needs=("optimizer",),
    not_for=("inference",),
    metrics=("scale_moved", "angle"),
    threads=("vllm-project/speculators/pull/765", "fla-org/flame/issues/47"),
)
