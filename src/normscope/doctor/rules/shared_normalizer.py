"""NS213: one normalizer for several layers."""

from torch import nn

from normscope.doctor.modules import is_normalizer, role
from normscope.doctor.neighbours import consumers, producers
from normscope.doctor.rule import Certainty, Findings, Rule, Subject, place_of
from normscope.operators.site import Site


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield the normalizers that are called between unrelated layers."""
    graph = subject.graph
    ends = [s.node for s in subject.sites()]
    modules = dict(subject.model.named_modules())
    for place, times in subject.calls.items():
        if times < 2:
            continue
        sites = [s for s in subject.sites() if subject.first_path(place_of(s)) == place]
        if not _has_state(sites, modules.get(place)):
            continue
        made = [set(map(subject.first_path, producers(graph, s.node))) for s in sites]
        found, side = _unrelated_layers(made, by_role=True), "after"
        if found is None:  # calls after the same layers belong to a block that is called again
            readers = {
                frozenset(m): set(map(subject.first_path, consumers(graph, s.node, ends)))
                for m, s in zip(made, sites, strict=True)
            }
            found, side = _unrelated_layers(list(readers.values()), by_role=False), "before"
        if found is None:
            continue  # the layers around it are shared, too, or are at equal positions of equal blocks
        first, second = found
        tracks = sites[0].kind == "batch_norm"
        what = "its running statistics fit neither of them" if tracks else "both get the same scale"
        text = f"this {sites[0].kind} is called {times} times, {side} {first} and {side} {second}: {what}"
        yield rule.finding(place, text, {"calls": times, "first": first, "second": second})


def _has_state(sites: list[Site], module: nn.Module | None) -> bool:
    """Return whether calls share parameters or statistics; a function has none, and a block has those of its layers."""
    if module is not None and any(True for child in module.children() for _ in child.parameters()):
        scales = [s.gamma for s in sites]  # a block with several normalizers
        return scales[0] is not None and all(s is scales[0] for s in scales)
    own = any(s.gamma is not None or s.running is not None for s in sites)
    return own or (module is not None and is_normalizer(module))


def _unrelated_layers(around: list[set[str]], *, by_role: bool) -> tuple[str, str] | None:
    """Return one layer each of two calls without a common layer, or ``None`` if there are no such calls.

    >>> _unrelated_layers([{"a"}, {"a", "b"}, {"c"}], by_role=False)
    ('a', 'c')
    """
    known = [{role(path) for path in paths} if by_role else paths for paths in around]
    for j in range(len(known)):
        for i in range(j):
            if known[i] and known[j] and not known[i] & known[j]:
                return min(around[i]), min(around[j])
    return None


RULE = Rule(
    code="NS213",
    title="one normalizer for different layers",
    certainty=Certainty.LIKELY,
    why="A module that is called twice has one set of parameters and buffers. A BatchNorm shared by two layers "
    "averages the statistics of both, and in evaluation neither is normalized; in training, where the batch is used, "
    "nothing looks wrong. A shared LayerNorm gives both layers one scale and shift.",
    effect="evaluation with BatchNorm is much worse than training",
    fix="build one normalizer for each layer",
    example="class Net(nn.Module):\n"
    "    def __init__(self):\n"
    "        super().__init__()\n"
    "        self.a, self.b, self.norm = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)\n"
    "\n"
    "    def forward(self, x):\n"
    "        return self.norm(self.b(self.norm(self.a(x)).relu()))\n\n\n"
    "model = Net()",
    good="model = nn.Sequential(\n"
    "    nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 8, bias=False), nn.BatchNorm1d(8)\n"
    ")",
    threads=(
        "pytorch/pytorch/issues/1738",
        "keras-team/keras/issues/8794",
        "allenai/OLMo/issues/222",
        "dreamquark-ai/tabnet/pull/76",
    ),
)
