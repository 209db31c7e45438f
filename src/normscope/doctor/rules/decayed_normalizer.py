"""NS401: weight decay on normalization parameters, gates of branches or biases."""

from dataclasses import replace

from torch import nn

from normscope.doctor.neighbours import origin_of
from normscope.doctor.rule import Certainty, Findings, Rule, Subject
from normscope.graph.ir import Graph, Node
from normscope.graph.recognise import name_of


def decay_of(subject: Subject) -> dict[str, float]:
    """Return the weight decay of every parameter of the optimizer, by name."""
    by_id = subject.optimizer_settings("weight_decay")
    return {name: by_id[id(p)] for name, p in subject.model.named_parameters() if id(p) in by_id}


def scales_and_shifts(subject: Subject) -> dict[str, str]:
    """Return the parameters that are the scale or shift of a normalizer, or a bias, by name, and what they are.

    Normalizers are those in the graph, including hand-written ones; without a graph, modules with "Norm" in their name.
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


def gates(subject: Subject) -> dict[str, str]:
    """Return the parameters that scale a branch before it is added to the rest, by name, and what they are.

    One number, or one per channel, perhaps through an elementwise function, multiplies a tensor that depends on the
    input; the product is added to another such tensor.
    """
    graph, depends = subject.graph, subject.graph.moving
    found: dict[str, str] = {}
    for node in graph:
        if name_of(node) != "mul" or len(node.inputs()) != 2 or sum(n in depends for n in node.inputs()) != 1:
            continue
        parameter = origin_of(graph, next(n for n in node.inputs() if n not in depends))
        shape = parameter.shape or ()
        if parameter.op == "parameter" and sum(n > 1 for n in shape) <= 1 and _is_added(graph, node):
            found[parameter.target] = "gate of a branch"
    return found


def _is_added(graph: Graph, node: Node) -> bool:
    """Return whether a node, perhaps after views, is added to another tensor that depends on the input."""
    users = graph.users()
    while len(users[node.name]) == 1:
        node, before = graph[users[node.name][0]], node
        if name_of(node) == "add":
            others = [n for n in node.inputs() if n != before.name]
            return bool(others) and others[0] in graph.moving
        if len(node.inputs()) != 1:
            return False
    return False


#: Kinds of parameters in the order in which they are reported, and their plurals.
_KINDS = {
    "scale of a normalizer": "scales of normalizers",
    "shift of a normalizer": "shifts of normalizers",
    "gate of a branch": "gates of branches",
    "bias": "biases",
}


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield one finding for all parameters, at the first one of the most important kind."""
    decay = decay_of(subject)
    kinds: dict[str, list[str]] = {what: [] for what in _KINDS}
    for name, what in (gates(subject) | scales_and_shifts(subject)).items():
        if decay.get(name, 0.0) > 0:
            kinds[what].append(name)
    parts = [
        f"{_KINDS[what]} ({names[0]}{f' and {len(names) - 1} more' if len(names) > 1 else ''})"
        for what, names in kinds.items()
        if names
    ]
    if not parts:
        return
    first, *others = (name for names in kinds.values() for name in names)
    found = rule.finding(
        first.rpartition(".")[0],
        f"weight decay {decay[first]:g} acts on {', '.join(parts)}",
        {"parameters": 1 + len(others), "weight_decay": decay[first], "first": first},
    )
    yield replace(found, places=tuple(dict.fromkeys(name.rpartition(".")[0] for name in (first, *others))))


RULE = Rule(
    code="NS401",
    title="weight decay on normalization parameters, gates or biases",
    certainty=Certainty.LIKELY,
    why="Decay on a scale pulls the output of its normalizer to zero, decay on a shift or bias pulls its mean: it "
    "limits what the layer can represent, not the size of a weight. A learned number that scales a residual branch (a "
    "gate, a layer scale) is pulled to zero, which closes the branch. Common recipes exclude all of these from decay.",
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
    not_for=("inference",),
    threads=("Lightning-AI/lit-llama/issues/254", "huggingface/transformers/issues/4360", "majumderb/rezero/issues/14"),
)
