"""NS403: normalization parameters that no optimizer updates."""

from collections.abc import Iterator

from torch import Tensor

from normscope.doctor.modules import is_normalizer
from normscope.doctor.neighbours import origin_of
from normscope.doctor.rule import Certainty, Findings, Rule, Subject, layer_of
from normscope.doctor.rules.decayed_normalizer import scales_and_shifts
from normscope.graph.recognise import name_of
from normscope.operators.site import Site


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield normalizers whose parameters require a gradient but are never updated, while those around them are."""
    rates = subject.optimizer_settings("lr")
    model = subject.model
    for path, module in model.named_modules():
        own = [p for p in module.parameters(recurse=False) if p.requires_grad]
        if not own or not is_normalizer(module) or any(id(p) in rates for p in own):
            continue
        parent = model.get_submodule(path.rpartition(".")[0])
        around = [p for p in parent.parameters() if not any(p is mine for mine in own)]
        if any(id(p) in rates for p in around):
            yield rule.finding(
                path,
                f"the parameters of this {type(module).__name__} are in no group of the optimizer, while those of its "
                "neighbours are: they are never updated",
                {"parameters": sum(p.numel() for p in own)},
            )
    yield from _standing(rule, subject, rates)
    yield from _frozen_lengths(rule, subject, rates)


def _standing(rule: Rule, subject: Subject, rates: dict[int, float]) -> Findings:
    """Yield scales and shifts with a learning rate of zero, if the weights around them have another one."""
    model, found = subject.model, dict[str, list[str]]()
    for name, what in scales_and_shifts(subject).items():
        if what != "bias" and subject.parameters[name].requires_grad and rates.get(id(subject.parameters[name])) == 0:
            found.setdefault(name.rpartition(".")[0], []).append(name)
    for path, names in found.items():
        parent = model.get_submodule(path.rpartition(".")[0])
        around = max((rates.get(id(p), 0.0) for p in parent.parameters() if p.ndim > 1), default=0.0)
        if around > 0:
            yield rule.finding(
                path,
                f"the learning rate of {' and '.join(names)} is 0, that of weights around it {around:g}: "
                f"{'it is' if len(names) == 1 else 'they are'} never updated",
                {"parameters": len(names), "rate": around},
                fix="give the group of these parameters a learning rate; after a warm-up, check that every group gets "
                "its own rate back",
            )


def _frozen_lengths(rule: Rule, subject: Subject, rates: dict[int, float]) -> Findings:
    """Yield weight normalizations whose directions are trained but whose lengths, which differ, are not."""
    for site in subject.weight_sites():
        direction = subject.parameters.get(site.source) if site.kind == "weight_norm" else None
        if direction is None or not direction.requires_grad or not rates.get(id(direction)):
            continue
        for name, length in _lengths(subject, site):
            learns = length.requires_grad and bool(rates.get(id(length)))
            flat = length.detach().flatten()
            if learns or flat.numel() < 2 or bool((flat == flat[0]).all()):
                continue  # equal lengths are taken to be intended
            yield rule.finding(
                layer_of(site),
                f"the lengths {name} of this weight normalization are not trained, but its directions are: the layer "
                "keeps its initial gain",
                {"lengths": flat.numel()},
                fix="make the lengths parameters that require a gradient, in a group of the optimizer",
            )


def _lengths(subject: Subject, site: Site) -> Iterator[tuple[str, Tensor]]:
    """Yield the tensors that scale the directions of a weight normalization, with their names."""
    graph = subject.graph
    near = [graph[site.node], *(graph[n] for n in graph.users()[site.node] if name_of(graph[n]) == "mul")]
    tensors = {**dict(subject.model.named_buffers()), **subject.parameters}
    for other in {n for item in near for n in item.inputs()}:
        source = origin_of(graph, other)
        if source.target and source.target != site.source and source.target in tensors:
            yield source.target, tensors[source.target]


RULE = Rule(
    code="NS403",
    title="scale, shift or length that no optimizer updates",
    certainty=Certainty.PROVED,
    why="An optimizer holds the parameters it was built with. A layer that is replaced afterwards (converted, pruned, "
    "wrapped) brings new ones, and groups made by name miss some. A group whose learning rate a schedule left at zero "
    "does not move either, nor do the lengths of a weight normalization that are frozen, or not parameters, while its "
    "directions train (if all lengths are equal, this is taken to be intended).",
    effect="scale and shift keep their values while everything around them is trained",
    fix="build the optimizer after the last change of the model, and add every parameter to one group",
    example="model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.0)\n"
    "model[1] = nn.LayerNorm(8)",
    good="model = nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8))\n"
    "optimizer = torch.optim.SGD(model.parameters(), lr=0.1, weight_decay=0.0)",
    needs=("optimizer",),
    not_for=("inference",),
    threads=(
        "microsoft/nni/issues/4521",
        "zjunlp/HVPNeT/issues/5",
        "MultimediaTechLab/YOLO/issues/122",
        "google/flax/issues/5577",
    ),
)
