"""NS403: normalization parameters that no optimizer moves."""

from __future__ import annotations

from collections.abc import Iterator

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.modules import is_normalizer
from normscope.doctor.rule import Rule
from normscope.doctor.subject import Subject


def _look(rule: Rule, subject: Subject) -> Iterator[Finding]:
    """Yield normalizers whose parameters ask for a gradient and are in no group, though those around them are."""
    if subject.optimizer is None:
        return
    held = {id(p) for g in subject.optimizer.param_groups for p in g["params"]}
    model = subject.model
    for path, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if not own or not is_normalizer(module) or any(id(p) in held for p in own):
            continue
        parent = model.get_submodule(path.rpartition(".")[0])
        around = [p for p in parent.parameters() if not any(p is mine for mine in own)]
        if any(id(p) in held for p in around):
            yield rule.finding(
                path,
                f"the parameters of this {type(module).__name__} are in no group of the optimizer, and those of its "
                "neighbours are: they never move",
                {"parameters": sum(p.numel() for p in own)},
            )


RULE = Rule(
    code="NS403",
    name="not-optimized",
    title="scale and shift in no optimizer group",
    severity=Severity.WARNING,
    certainty=Certainty.PROVED,
    statement="",
    why="An optimizer holds the parameters it was built with. A layer that is replaced afterwards (converted, pruned, "
    "wrapped) brings new ones, and lists of groups made by name forget some.",
    effect="scale and shift stay as they are, while everything around them is trained",
    fix="build the optimizer after the last change of the model, and add every parameter to one group",
    example="model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.0)\n"
    "model[1] = nn.LayerNorm(8)",
    good="model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.0)",
    needs=("optimizer",),
    look=_look,
    not_for=("inference",),
    threads=("microsoft/nni/issues/4521", "zjunlp/HVPNeT/issues/5"),
)
