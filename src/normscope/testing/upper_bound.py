"""Try to refute an upper bound with Jacobians, pairs of inputs and gradient ascent, in float64 and at all scales."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from normscope.core.value import ALL_INPUTS
from normscope.graph.capture import Captured, capture
from normscope.graph.inputs import ModelInputs
from normscope.graph.recorder import record_graph
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.lower import EndToEnd
from normscope.lipschitz.search import in_domain
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.operators.program import Program, ProgramBuilder
from normscope.operators.survey import survey
from normscope.testing.hooked_model import FLOAT64_NOISE
from normscope.testing.input_pairs import Flat, ascend, dense_norms, quotients
from normscope.testing.node_bounds import EVALUATION, node_violations, tensors_inside


@dataclass
class UpperBoundCheck:
    """Bounds and attained values on each domain, as natural logarithms.

    Attributes:
        upper: certified bound by name of the domain.
        probable: probabilistic bound by name of the domain.
        attained: largest Jacobian norm or quotient found, by name of the domain.
        opaque: operations without a finite constant.
        violations: a sentence for each bound that something attained exceeds.
        noise: rounding of a Jacobian, from the largest constant of any tensor on the way.
    """

    upper: dict[str, float] = field(default_factory=dict)
    probable: dict[str, float] = field(default_factory=dict)
    attained: dict[str, float] = field(default_factory=dict)
    opaque: list[str] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    noise: float = 0.0

    def compare(self, domain: str, attained: float, what: str) -> None:
        """Compare an attained value with the bounds on a domain."""
        if not attained > 0.0 or not math.isfinite(attained):
            return
        if "pair" not in what and (attained < self.noise or self.upper[domain] == -math.inf):
            return  # a derivative in which larger ones cancel, or rounding that a normalizer has blown up
        log = math.log(attained) + math.log1p(-EVALUATION)
        self.attained[domain] = max(self.attained.get(domain, -math.inf), log)
        for kind, bounds in (("certified", self.upper), ("probable", self.probable)):
            if log > bounds[domain]:
                self.violations.append(f"{what} attains {log:.12g} on {domain}, {kind} bound {bounds[domain]:.12g}")


def check_upper_bound(
    model: nn.Module, inputs: Sequence[Tensor], *, seed: int = 0, front_end: str = "export", ascent: int = 15
) -> UpperBoundCheck:
    """Bound a network on all inputs, on the data's variance floors and on the data's range, and try to refute each.

    Args:
        model: in evaluation mode and float64, each sample on its own.
        inputs: a batch of data, axis 0 the batch.
        seed: of the points.
        front_end: ``export`` or ``dispatch``.
        ascent: steps of gradient ascent.

    Returns:
        The bounds, what was attained, and every violation.

    >>> check_upper_bound(nn.Linear(2, 2).double(), [torch.eye(2, dtype=torch.float64)]).violations
    []
    """
    samples = [[t[i : i + 1] for t in inputs] for i in range(inputs[0].shape[0])]
    captured = _captured(model, samples[0] if front_end == "dispatch" else list(inputs), front_end)
    if front_end == "export" and captured.graph.batch != "dynamic":
        captured = _captured(model, samples[0], front_end)
    walk = ProgramBuilder(captured.graph, captured.tensors, samples[0])
    program = walk.run()
    seen = survey(captured, program, samples, activations={})
    domains = {
        "everywhere": Domain(ALL_INPUTS),
        "floors": Domain("floors", seen.floors()),
        "range": Domain("range", {}, tuple(seen.inputs)),
        "floors and range": Domain("floors and range", seen.floors(), tuple(seen.inputs)),
        "factors": Domain("factors", seen.floors(), tuple(seen.inputs), seen.factors),
    }
    norms = SegmentNorms(Effort(seed=seed))
    checked = UpperBoundCheck(opaque=sorted({a.atom.op for a in program.opaque}))
    compositions = {name: Composition(program, domain, norms) for name, domain in domains.items()}
    for name, composition in compositions.items():
        checked.upper[name], checked.probable[name], _ = composition.total()
        if math.isfinite(checked.upper[name]):
            checked.upper[name] += 1e-12 * max(1.0, abs(checked.upper[name]))
            checked.probable[name] += 1e-12 * max(1.0, abs(checked.probable[name]))
    if not program.outputs:
        return checked
    logs = [max(compositions["everywhere"].lipschitz(atom).certified) for atom in program.atoms]
    checked.noise = 1e-11 * math.exp(min(700.0, max((log for log in logs if log < math.inf), default=0.0)))
    ends = [EndToEnd(captured, program, s) for s in samples]
    data = torch.stack([e.point() for e in ends])
    function = _direct(model, inputs, program) or (lambda x: torch.stack([ends[0](row) for row in x]))
    generator = torch.Generator().manual_seed(seed)
    _refute_everywhere(checked, function, data, program, generator, ascent)
    _refute_on_data(checked, function, data, ends[0], domains, generator, ascent)
    for name, composition in compositions.items():
        points = _spread(data, generator, everywhere=name == "everywhere")
        found = node_violations(walk, composition, points, tensors_inside(ends[0], points))
        checked.violations += [f"{text} on {name}" for text in found]
    return checked


def _spread(data: Tensor, generator: torch.Generator, *, everywhere: bool) -> Tensor:
    """Return the data, and if any point will do, points far from it and close pairs."""
    if not everywhere:
        return data
    noise = torch.randn(4, *data.shape[1:], generator=generator, dtype=torch.float64)
    return torch.cat([data, data[:1] + 1e-4 * noise[:1], noise, 1e3 * noise[:2], 1e-3 * noise[2:]])


def _captured(model: nn.Module, inputs: list[Tensor], front_end: str) -> Captured:
    """Capture the model by one front end."""
    if front_end == "export":
        return capture(model, ModelInputs(tuple(inputs)))
    graph, tensors = record_graph(model, tuple(inputs))
    return Captured(graph, tensors, inputs, [str(i) for i in range(len(inputs))])


def _direct(model: nn.Module, inputs: Sequence[Tensor], program: Program) -> Flat | None:
    """Return the user's own model on flattened inputs; ``None`` for token models, which start at an embedding."""
    if any(b.kind != "input" for b in program.blocks):
        return None
    shapes = [tuple(t.shape[1:]) for t in inputs]

    def function(x: Tensor) -> Tensor:
        parts = torch.split(x, [math.prod(s) for s in shapes], 1)
        out = model(*(p.reshape(len(x), *s) for p, s in zip(parts, shapes, strict=True)))
        return out.flatten(1)

    return function


def _points(data: Tensor, program: Program, generator: torch.Generator) -> Tensor:
    """Return points of very different scales, and points near those where normalizers are steepest."""
    n = data.shape[1]
    found = [data, data * 1e-4]
    for exponent in range(-6, 7, 2):
        found.append(torch.randn(2, n, generator=generator, dtype=torch.float64) * 10.0**exponent)
    noise = torch.randn(6, n, generator=generator, dtype=torch.float64)
    for size in (1e-9, 1e-6, 1e-3):
        level = torch.tensor([0.0, 0.0, 1.0, -1.0, 30.0, -30.0], dtype=torch.float64)[:, None]
        found.append(level + size * noise)
        pieces = [
            (
                torch.randn(2, *b.shape[1:-1], 1, generator=generator, dtype=torch.float64).expand(2, *b.shape[1:])
            ).reshape(2, -1)
            if len(b.shape) > 2
            else torch.ones(2, math.prod(b.shape), dtype=torch.float64)
            for b in program.blocks
        ]
        found.append(torch.cat(pieces, 1) + size * noise[:2])
    return torch.cat(found)


def _largest_quotient(function: Flat, x: Tensor) -> float:
    """Return the largest quotient over all pairs of some points that are not too close for float64."""
    with torch.no_grad():
        y = function(x)
    if not bool(y.isfinite().all()):
        return math.nan
    i, j = torch.triu_indices(len(x), len(x), 1)
    return float(quotients((y[i], y[j]), x[i], x[j], FLOAT64_NOISE, closest=1e-3).max()) if len(i) else 0.0


def _refute_everywhere(
    checked: UpperBoundCheck, function: Flat, data: Tensor, program: Program, generator: torch.Generator, ascent: int
) -> None:
    """Test Jacobians and pairs anywhere against the bound on all inputs."""
    if checked.upper["everywhere"] == math.inf:
        return
    x = _points(data, program, generator)
    norms = dense_norms(function, x).nan_to_num(0.0)
    checked.compare("everywhere", float(norms.max()), "a Jacobian")
    checked.compare("everywhere", _largest_quotient(function, x), "a pair")
    starts = torch.cat([x[norms.argsort(descending=True)[:3]], data[:2]])
    a, b = ascend(function, starts, generator, ascent)
    with torch.no_grad():
        attained = float(quotients((function(a), function(b)), a, b, FLOAT64_NOISE).max())
    checked.compare("everywhere", attained, "an ascended pair")
    checked.compare("everywhere", float(dense_norms(function, torch.cat([a, b])).nan_to_num(0.0).max()), "ascent")


def _refute_on_data(
    checked: UpperBoundCheck,
    function: Flat,
    data: Tensor,
    end: EndToEnd,
    domains: dict[str, Domain],
    generator: torch.Generator,
    ascent: int,
) -> None:
    """Test data, points near it and ascended points against the bounds on the domains the data gives."""
    near = data + 0.1 * data.std() * torch.randn(data.shape, generator=generator, dtype=torch.float64)
    mixed = 0.5 * (data + data.roll(1, 0))
    a, b = ascend(function, data, generator, ascent)
    others = torch.cat([near, mixed, a, b])
    at_data, at_others = (dense_norms(function, x).nan_to_num(0.0) for x in (data, others))
    for name, domain in domains.items():
        if name == "everywhere" or checked.upper[name] == math.inf:
            continue
        checked.compare(name, float(at_data.max()), "a Jacobian at the data")
        checked.compare(name, _largest_quotient(function, data), "a pair of the data")
        inside = torch.tensor([in_domain(end, x, domain) for x in others])
        if bool(inside.any()):
            checked.compare(name, float(at_others[inside].max()), "a Jacobian inside")
            checked.compare(name, _largest_quotient(function, torch.cat([data, others[inside]])), "a pair inside")
