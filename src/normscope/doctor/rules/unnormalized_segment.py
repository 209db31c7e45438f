"""NS502: a segment without normalizers whose certified product explodes or vanishes."""

import math
from dataclasses import dataclass

from normscope.core.number_text import number_text
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.lipschitz.composition import Domain
from normscope.lipschitz.quick_norms import QuickNorms, Roughly, RoughNorms
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.expression import Expr, operands, reached
from normscope.operators.nonlinear import Input, Lip
from normscope.operators.program import Program
from normscope.operators.spread_division import Division

#: Decimal logarithms at which a product counts as exploding, and as vanishing.
EXPLODES, VANISHES = 6.0, -4.0
#: Fewest layers of a segment.
FEWEST = 2


class SegmentComposition(Roughly):
    """The composition in which every normalizer, like the input, starts a new segment with the constant one."""

    def __init__(self, program: Program, domain: Domain, norms: SegmentNorms) -> None:
        super().__init__(program, domain, norms)
        self.blocks = 1  # all starts of a segment count as one input

    def lipschitz(self, expr: Expr) -> Lip:
        """Return the constant with respect to the nearest normalizers (and inputs) before."""
        if expr.op is None and isinstance(expr.atom, Division | Input):
            return Lip.constant(0.0, 1)
        return super().lipschitz(expr)


@dataclass(frozen=True, eq=False)
class UnnormalizedSegment:
    """The layers before a normalizer or an output, back to the normalizers before them."""

    end: str  #: the normalizer or output after it
    log10: float  #: decimal logarithm of its certified constant
    #: its linear layers in order, each with the decimal logarithm of the constant up to it
    layers: tuple[tuple[Expr, float], ...]

    def best_cut(self) -> tuple[Expr, float]:
        """Return the layer after which a normalizer helps most, and the larger part that is left."""
        sign = 1.0 if self.log10 >= 0 else -1.0
        inner = self.layers[:-1] or self.layers
        return min(
            ((e, max(sign * log, sign * (self.log10 - log))) for e, log in inner),
            key=lambda pair: (pair[1], pair[0].id),
        )


def segments(subject: Subject, norms: QuickNorms | None = None, fewest: int = 1) -> list[UnnormalizedSegment]:
    """Return the segments of at least ``fewest`` layers, each with its own certified constant."""
    program = subject.training
    layers = {e.id for e in program.layers}
    ends = [(place_of(site), source) for site, source, _ in subject.structure.sites()]
    ends += [("the output" if name == "output" else f"output {name}", expr) for name, expr in program.outputs]
    long = [(name, expr, [e for e in _between(expr) if e.id in layers]) for name, expr in ends]
    long = [end for end in long if len(end[2]) >= fewest]
    if not long:
        return []
    composition = SegmentComposition(program, Domain(), norms or QuickNorms(subject.norms.effort))
    for atom in program.atoms:
        composition.lipschitz(atom)  # in order, which avoids deep recursion
    found = []
    for name, expr, inside in long:
        log = max(composition.lipschitz(expr).certified) / math.log(10)
        if math.isfinite(log):
            parts = tuple((e, max(composition.lipschitz(e).certified) / math.log(10)) for e in inside)
            found.append(UnnormalizedSegment(name, log, parts))
    return found


def suspects(subject: Subject) -> list[UnnormalizedSegment]:
    """Return the segments that vanish, or explode even if every norm is as small as it can be."""
    rough = segments(subject, RoughNorms(subject.norms.effort), FEWEST)
    if all(VANISHES < s.log10 < EXPLODES for s in rough):
        return []
    least = {s.end: s.log10 for s in rough}
    return [s for s in segments(subject, fewest=FEWEST) if s.log10 <= VANISHES or least.get(s.end, s.log10) >= EXPLODES]


def _between(expr: Expr) -> list[Expr]:
    """Return everything an expression depends on, back to normalizers."""
    return reached([expr], lambda e: () if e.op is None and isinstance(e.atom, Division | Input) else operands(e))


def check(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each segment that explodes or vanishes, with the place where a normalizer helps most."""
    reported: set[int] = set()
    for segment in suspects(subject):
        explodes, vanishes = segment.log10 >= EXPLODES, segment.log10 <= VANISHES
        if all(e.id in reported for e, _ in segment.layers):
            continue
        reported.update(e.id for e, _ in segment.layers)
        layer, left = segment.best_cut()
        owner = layer.op.owner if layer.op is not None else ""
        what = "explodes" if explodes else "vanishes"
        rest, side = (left, "most") if explodes else (-left, "least")
        yield rule.finding(
            owner,
            f"the certified product of {len(segment.layers)} layers before {segment.end} {what}: "
            f"{number_text(segment.log10)} without a normalizer; one after {owner} would leave parts of at {side} "
            f"{number_text(rest)}",
            {"log10": segment.log10, "layers": len(segment.layers), "log10_after": rest, "end": segment.end},
            severity=Severity.WARNING if vanishes else Severity.INFO,
        )


RULE = Rule(
    code="NS502",
    title="product of layers explodes or vanishes without a normalizer",
    certainty=Certainty.PROVED,
    statement="normscope F10",
    why="Without a normalizer the constants of layers multiply. A certified product of 1e-4 or less proves that the "
    "segment hardly transmits anything: differences of inputs, and gradients, shrink at least that much. A product of "
    "1e6 or more proves nothing by itself (it is an upper bound), but nothing prevents the segment from reaching it.",
    effect="differences of inputs, and gradients, vanish: the layers before are not trained",
    fix="put a normalizer where the message says, or rescale the weights there",
    example="model = nn.Sequential(*(m for _ in range(10) for m in (nn.Linear(64, 64), nn.Tanh())))\n"
    "for layer in model[::2]:\n"
    "    nn.init.orthogonal_(layer.weight, gain=0.3)",
    good="model = nn.Sequential(*(m for _ in range(10) for m in (nn.Linear(64, 64), nn.LayerNorm(64), nn.Tanh())))\n"
    "for layer in model[::3]:\n"
    "    nn.init.orthogonal_(layer.weight, gain=0.3)",
    slow=True,
)
