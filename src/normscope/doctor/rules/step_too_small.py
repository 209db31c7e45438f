"""NS404: scales in half precision that the optimizer's steps cannot move."""

import torch

from normscope.doctor.modules import is_normalizer
from normscope.doctor.rule import Certainty, Findings, History, Rule, Subject

#: Steps after which a scale should have moved.
STEPS = 50
_BOUNDED = ("Adam", "AdamW", "NAdam", "RAdam", "Adamax", "Lion", "AdamW8bit")


def least_step(scale: torch.Tensor) -> float:
    """Return the least step that changes the typical entry of a tensor: a quarter of its unit, downwards.

    >>> least_step(torch.ones(4, dtype=torch.bfloat16))
    0.001953125
    """
    return float(torch.finfo(scale.dtype).eps) / 4 * float(scale.detach().float().abs().median())


def look(rule: Rule, subject: Subject) -> Findings:
    """Yield normalizers whose scale is too coarse for the rate of an optimizer with steps of bounded size."""
    optimizer = subject.optimizer
    if optimizer is None or type(optimizer).__name__ not in _BOUNDED:
        return
    rates = {id(p): float(g["lr"]) for g in optimizer.param_groups for p in g["params"]}
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
                f"{least_step(scale):.2g}, but a step of {type(optimizer).__name__} is about {rate:g}: it rounds to "
                "nothing",
                {"rate": rate, "least": least_step(scale), "dtype": name},
            )


def over_time(rule: Rule, history: History) -> Findings:
    """Yield the scales that have not moved at all while other parts of the network have."""
    tracks = list(history.tracks("scale_moved"))
    trains = any(t.last > 0 for t in tracks) or any(t.last > 0 for t in history.tracks("angle"))
    for track in tracks:
        if track.last == 0 and track.steps[-1] - track.steps[0] >= STEPS and trains:
            yield rule.finding(
                track.place,
                f"its scale is exactly what it was at step {track.steps[0]}, {track.steps[-1] - track.steps[0]} steps "
                "ago, while others have moved: its steps round to nothing, or it is in no optimizer",
                {"steps": int(track.steps[-1] - track.steps[0])},
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
    threads=("vllm-project/speculators/pull/765", "fla-org/flame/issues/47"),
)
