"""NS401: normalization parameters or biases in a weight decay group."""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

from normscope.core.finding import Certainty, Finding, Severity
from normscope.doctor.rule import Rule
from normscope.doctor.subject import Subject


def decay_of(subject: Subject) -> dict[str, float]:
    """Return the weight decay of every parameter the optimizer has, by name."""
    if subject.optimizer is None:
        return {}
    by_id = {id(p): float(g.get("weight_decay", 0.0)) for g in subject.optimizer.param_groups for p in g["params"]}
    return {name: by_id[id(p)] for name, p in subject.model.named_parameters() if id(p) in by_id}


def scales_and_shifts(subject: Subject) -> dict[str, str]:
    """Return the parameters that are a normalizer's scale or shift, or a bias, by name, and what they are.

    Normalizers are those the graph shows, hand-written ones too; without a graph, modules that are called norms.
    """
    found: dict[str, str] = {}
    for site in subject.sites():
        for tensor, what in ((site.gamma, "scale"), (site.beta, "shift")):
            name = "" if tensor is None else subject.parameter_name(tensor, site.owner)
            if name:
                found[name] = f"{what} of a normalizer"
    for path, module in subject.model.named_modules():
        normalizes = type(module).__name__.endswith("Norm") or isinstance(module, nn.modules.batchnorm._NormBase)
        for key, parameter in module.named_parameters(recurse=False):
            name = f"{path}.{key}" if path else key
            if key == "bias" or key.endswith("_bias"):
                found.setdefault(name, "shift of a normalizer" if normalizes else "bias")
            elif normalizes and parameter.ndim <= 1 and key != "bias":
                found.setdefault(name, "scale of a normalizer")
    return found


def _look(rule: Rule, subject: Subject) -> Iterator[Finding]:
    """Yield one finding per kind of parameter, with how many there are."""
    decay = decay_of(subject)
    kinds: dict[str, list[str]] = {}
    for name, what in scales_and_shifts(subject).items():
        if decay.get(name, 0.0) > 0:
            kinds.setdefault(what, []).append(name)
    for what, names in kinds.items():
        place = names[0].rpartition(".")[0]
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        words = {"bias": "biases"}.get(what, f"{what.partition(' ')[0]}s of normalizers")
        yield rule.finding(
            place,
            f"weight decay {decay[names[0]]:g} acts on {words}: {names[0]}{more}",
            {"parameters": len(names), "weight_decay": decay[names[0]], "first": names[0]},
        )


RULE = Rule(
    code="NS401",
    name="decayed-normalizer",
    title="normalization parameters or biases decay",
    severity=Severity.WARNING,
    certainty=Certainty.LIKELY,
    statement="",
    why="Decay on a scale pulls the output of its normalizer to zero, decay on a shift or bias pulls its mean: it "
    "limits what the layer can represent, not the size of a weight. Common recipes leave both out of decay.",
    effect="decay pulls the output of normalizers to zero and limits what layers can represent",
    fix="put parameters with one axis into a group with weight_decay=0",
    example="model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))\n"
    "optimizer = torch.optim.AdamW(model.parameters(), weight_decay=0.1)",
    good="model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))\n"
    "groups = [\n"
    "    {'params': [p for p in model.parameters() if p.ndim > 1], 'weight_decay': 0.1},\n"
    "    {'params': [p for p in model.parameters() if p.ndim <= 1], 'weight_decay': 0.0},\n"
    "]\n"
    "optimizer = torch.optim.AdamW(groups)",
    needs=("optimizer",),
    look=_look,
    not_for=("inference",),
    threads=("Lightning-AI/lit-llama/issues/254", "huggingface/transformers/issues/4360"),
)
