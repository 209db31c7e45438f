"""NS502: a segment without normalizer whose certified product explodes or vanishes."""

import math
from dataclasses import dataclass

from normscope.core.number_text import number_text
from normscope.doctor.rule import Certainty, Findings, Rule, Severity, Subject, place_of
from normscope.lipschitz.composition import Domain
from normscope.lipschitz.quick_norms import QuickNorms, Roughly, RoughNorms
from normscope.lipschitz.segments import SegmentNorms
from normscope.operators.expression import Expr, operands, reached
from normscope.operators.nonlinear import Input, Lip
from normscope.operators.normalization import Division
from normscope.operators.program import Program

#: Decimal logarithms from which on a product counts as exploding, and below which as vanishing.
EXPLODES, VANISHES = 6.0, -4.0
#: Fewer layers are no stretch.
FEWEST = 2


class Stretches(Roughly):
    """The composition in which every normalizer, like the input, starts anew with the constant one."""

    def __init__(self, program: Program, domain: Domain, norms: SegmentNorms) -> None:
        super().__init__(program, domain, norms)
        self.blocks = 1  # whatever starts a stretch is one input

    def lipschitz(self, expr: Expr) -> Lip:
        """Return the constant with respect to the normalizers (and inputs) right before."""
        if expr.op is None and isinstance(expr.atom, Division | Input):
            return Lip.constant(0.0, 1)
        return super().lipschitz(expr)


@dataclass(frozen=True, eq=False)
class Stretch:
    """What lies before a normalizer or an output, up to the normalizers before it."""

    end: str  #: what ends it
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


def stretches(subject: Subject, norms: QuickNorms | None = None, fewest: int = 1) -> list[Stretch]:
    """Return the stretches of a network of some layers at least, each with the certified constant it has by itself."""
    program = subject.training
    layers = {e.id for e in program.layers}
    ends = [(place_of(site), source) for site, source, _ in subject.structure.sites()]
    ends += [("the output" if name == "output" else f"output {name}", expr) for name, expr in program.outputs]
    long = [(name, expr, [e for e in _between(expr) if e.id in layers]) for name, expr in ends]
    long = [end for end in long if len(end[2]) >= fewest]
    if not long:
        return []
    composition = Stretches(program, Domain(), norms or QuickNorms(subject.norms.effort))
    for atom in program.atoms:
        composition.lipschitz(atom)  # in order, so that nothing recurses deeply
    found = []
    for name, expr, inside in long:
        log = max(composition.lipschitz(expr).certified) / math.log(10)
        if math.isfinite(log):
            parts = tuple((e, max(composition.lipschitz(e).certified) / math.log(10)) for e in inside)
            found.append(Stretch(name, log, parts))
    return found


def suspects(subject: Subject) -> list[Stretch]:
    """Return the stretches out of hand: those whose product explodes even if every norm is as small as it may be."""
    rough = stretches(subject, RoughNorms(subject.norms.effort), FEWEST)
    if all(VANISHES < s.log10 < EXPLODES for s in rough):
        return []
    least = {s.end: s.log10 for s in rough}
    return [
        s for s in stretches(subject, fewest=FEWEST) if s.log10 <= VANISHES or least.get(s.end, s.log10) >= EXPLODES
    ]


def _between(expr: Expr) -> list[Expr]:
    """Return everything below an expression, down to normalizers."""
    return reached([expr], lambda e: () if e.op is None and isinstance(e.atom, Division | Input) else operands(e))


def look(rule: Rule, subject: Subject) -> Findings:
    """Yield a finding for each stretch whose constant is out of hand, with the place where a normalizer helps most."""
    reported: set[int] = set()
    for stretch in suspects(subject):
        explodes, vanishes = stretch.log10 >= EXPLODES, stretch.log10 <= VANISHES
        if all(e.id in reported for e, _ in stretch.layers):
            continue
        reported.update(e.id for e, _ in stretch.layers)
        layer, left = stretch.best_cut()
        owner = layer.op.owner if layer.op is not None else ""
        what = "explodes" if explodes else "vanishes"
        rest, side = (left, "most") if explodes else (-left, "least")
        yield rule.finding(
            owner,
            f"the certified product of {len(stretch.layers)} layers before {stretch.end} {what}: "
            f"{number_text(stretch.log10)} without a normalizer; one after {owner} leaves parts of at {side} "
            f"{number_text(rest)}",
            {"log10": stretch.log10, "layers": len(stretch.layers), "log10_after": rest, "end": stretch.end},
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
