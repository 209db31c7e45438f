"""NS105: a normalizer that is built but never called."""

import re

from normscope.doctor.modules import is_normalizer
from normscope.doctor.rule import Certainty, Findings, Rule, Subject

#: Names of scale parameters.
_SCALE = re.compile(r"scale|gamma|gain")


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the normalizers that are not called although the module they belong to is."""
    yield from _forgotten(rule, subject)
    graph = subject.graph
    owners = {n.owner for n in graph}
    targets = {n.target for n in graph if n.target}
    names = {id(p): name for name, p in subject.model.named_parameters(remove_duplicate=False)}
    for path, module in subject.model.named_modules():
        own = list(module.parameters(recurse=False))
        if not path or not own or not is_normalizer(module):
            continue
        if any(o == path or o.startswith(f"{path}.") for o in owners):
            continue
        if any(names.get(id(p), "") in targets or f"{path}.{key}" in targets for key, p in module.named_parameters()):
            continue  # something else uses its parameters
        parent = path.rpartition(".")[0]
        if any(o == parent or o.startswith(f"{parent}." if parent else "") for o in owners if o):
            yield rule.finding(
                path,
                f"{type(module).__name__} is built but never called: its {sum(p.numel() for p in own)} parameters have "
                "no effect",
                {"parameters": sum(p.numel() for p in own)},
            )


def _forgotten(rule: Rule, subject: Subject) -> Findings:
    """Yield the modules that normalize by hand and never use their own scale."""
    targets = {n.target for n in subject.graph if n.target}
    modules = dict(subject.model.named_modules())
    for path in dict.fromkeys(site.owner for site in subject.sites() if site.written_out and site.owner in modules):
        lost = [
            key
            for key, p in modules[path].named_parameters(recurse=False)
            if _SCALE.search(key) and p.numel() > 1 and f"{path}.{key}".lstrip(".") not in targets
        ]
        if lost:
            yield rule.finding(
                path,
                f"it normalizes, but its {' and '.join(lost)} {'is' if len(lost) == 1 else 'are'} never used",
                {"parameters": sum(getattr(modules[path], key).numel() for key in lost)},
                fix="multiply by it after the normalization, or remove it",
            )


RULE = Rule(
    code="NS105",
    title="normalizer that is never called",
    certainty=Certainty.PROVED,
    why="forward() does not call a normalizer that __init__ builds, although the module it belongs to runs. The "
    "network is not the intended one; DistributedDataParallel stops with an error about unused parameters.",
    effect="a layer lacks the normalizer it was meant to have",
    fix="call it, or remove it",
    example="class Net(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.fc, self.norm, self.out = nn.Linear(8, 8), nn.LayerNorm(8), nn.Linear(8, 2)\n"
    "\n"
    "    def forward(self, x):\n"
    "        return self.out(self.fc(x).relu())\n\n\n"
    "model = Net()",
    good="model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.ReLU(), nn.Linear(8, 2))",
    threads=("lucidrains/PaLM-rlhf-pytorch/issues/46", "lucidrains/x-transformers/issues/352"),
)
