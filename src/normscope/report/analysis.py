"""The result of an analysis as sections of text and tables, the verdict first."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from normscope.core.around_data import ASSUMPTIONS, Around
from normscope.core.errors import attempt
from normscope.core.finding import Finding, order
from normscope.core.gap import Gap
from normscope.core.number_text import digits, number_text
from normscope.core.result import Coverage, LayerResult, NormalizerResult, Result
from normscope.core.value import Kind, Value
from normscope.report.numbers import NOTHING, factor_text, float_text, kind_text, value_text
from normscope.report.table import Section, Table, shortened, without_column, without_empty
from normscope.report.verdict import verdict_lines

#: Rows of the end-to-end table: key in the result, words, key of the attained value it is compared with.
END_TO_END: tuple[tuple[str, str, str | None], ...] = (
    ("global", "certified, all inputs", "lower_everywhere"),
    ("global_probabilistic", "with high probability, all inputs", "lower_everywhere"),
    ("global_composition", "product of norms, all inputs", "lower_everywhere"),
    ("global_floor", "floor of chain bounds", None),
    ("variance_floor", "certified, variance floor", "lower"),
    ("variance_floor_probabilistic", "with high probability, variance floor", "lower"),
    ("without_normalizers", "certified, without normalizers", None),
    ("stacked_batch", "certified, stacked batch", "stacked_batch_lower"),
    ("lower", "attained", None),
    ("lower_everywhere", "attained, searched everywhere", None),
    ("jacobian", "largest Jacobian", None),
    ("stacked_batch_lower", "attained, stacked batch", None),
    ("printed", "printed (Theorem 9)", "lower"),
    ("corollary_10", "printed (Corollary 10)", "lower"),
    ("corollary_10_power", "printed (Corollary 10, sigma^-K)", "lower"),
    ("corollary_11", "printed (Corollary 11)", "lower"),
    ("printed_weights", "product of weight norms (Lemma 5)", None),
)
EFFECTS = {
    "change_of_bound": "bound with normalizers over bound without",
    "folded_product": "product of folded layers ||diag(gamma/sigma) W||",
    "normalizer_product": "product of max |gamma|/sigma, certified",
    "largest_inverse_std_product": "product of max 1/sigma",
    "printed_product": "printed product of the normalizers' constants",
    "slides_product": "the same on the slides, ||gamma/sigma||_2",
}
#: Hint where the formulas of papers are not shown.
FOLDED = "for the formulas printed in papers, add --printed, or printed=True in Python"
#: Domains longer than this many characters are written as notes below the table.
LONG = 40
#: How to reduce each part of a gap.
ADVICE = {
    "normalization": "normalizers: their constant grows as input variances fall; try --radius for local bounds",
    "attention": "attention: its constant grows with the range of its input; try --radius for local bounds",
    "products": "products of activations: their constant grows with their range; try --radius for local bounds",
    "activation patterns": "activation patterns: search longer (--time), or try --radius: fewer change in a ball",
    "linear layers": "layers whose worst directions do not align: search longer (--time)",
}
#: How many steps of the network are shown, largest share first.
LARGEST_SHARES = 8
Facts = Mapping[str, Sequence[str]]


def summary_sections(result: Result) -> list[Section]:
    """Return the short report of a result: verdict, coverage, findings, end to end."""
    sections = [verdict_section(result), _coverage(result.coverage), _end_to_end(result.end_to_end, printed=False)]
    if result.findings:
        sections.insert(1, findings_section(result.findings))
    return sections


def between(result: Result) -> str:
    """Return the attained and the certified constant of a network in a few words.

    >>> values = {"global": Value.of(2.0, Kind.CERTIFIED), "lower": Value.of(1.0, Kind.LOWER)}
    >>> between(Result({}, {}, Coverage(2, 2, 1.0, 6), (), (), values))
    'attained 1, certified 2'
    """
    values = result.end_to_end
    attained, certified = values.get("lower_everywhere") or values.get("lower"), values.get("global")
    return f"attained {value_text(attained)}, certified {value_text(certified)}"


def result_sections(result: Result, *, everything: bool = False, printed: bool = False) -> list[Section]:
    """Return the report of a result as sections: verdict, coverage, messages, end to end, then the details."""
    told: list[str] = []
    parts: dict[str, Callable[[], Section | None]] = {
        "verdict": lambda: verdict_section(result),
        "model": lambda: _model(result),
        "findings": lambda: findings_section(result.findings) if result.findings else None,
        "coverage": lambda: _coverage(result.coverage),
        "messages": lambda: None,
        "around the data": lambda: None if result.around is None else around_section(result.around),
        "end to end": lambda: _end_to_end(result.end_to_end, printed=printed),
        "where the gap comes from": lambda: None if result.gap is None else gap_section(result.gap),
        "normalizers": lambda: _normalizers(result, everything, printed) if result.normalizers else None,
        "layers": lambda: _layers(result, everything) if result.layers else None,
        "what normalizers change": lambda: _effect(result.effect, printed) if result.effect else None,
        "statistics": lambda: _statistics(result, everything) if result.statistics else None,
    }
    sections = {name: attempt(f"the section {name!r}", part, None, told) for name, part in parts.items()}
    messages = (*result.messages, *told)
    sections["messages"] = Section("messages", lines=messages) if messages else None
    return [section for section in sections.values() if section is not None]


def verdict_section(result: Result, title: str = "") -> Section:
    """Return the three sentences, below a title or the name of the model."""
    return Section(title or str(result.model.get("name") or "model"), sentences=verdict_lines(result))


def findings_section(findings: Sequence[Finding]) -> Section:
    """Return the findings of the doctor with their fixes, most severe first."""
    lines = []
    for finding in order(findings):
        lines.append(f"{finding.code} {finding.severity.value} {finding.place or 'model'}: {finding.message}")
        lines += [f"  fix: {finding.fix}"] if finding.fix else []
    return Section("findings", lines=tuple(lines), after=("run `normscope explain CODE` for details",))


def _model(result: Result) -> Section:
    facts = result.model
    lines = []
    if "parameters" in facts:
        lines.append(f"{facts.get('class', '')}, {int(facts['parameters']):,} parameters")
    blocks = [_block(b) for b in result.input.get("blocks", ())]
    if blocks:
        lines.append(f"input: {', '.join(blocks)}")
    words = {"mode": "BatchNorm mode {}", "norm": "{} norm", "front_end": "graph by {}"}
    if all(n.kind != "batch_norm" for n in result.normalizers):
        del words["mode"]
    seen = [text.format(facts[key]) for key, text in words.items() if facts.get(key)]
    if seen:
        lines.append(", ".join(seen))
    return Section("model", lines=tuple(lines))


def _block(block: Mapping[str, Any]) -> str:
    """Return the name and shape of an input, and its kind if it is not an input of the model.

    >>> _block({"name": "x", "shape": [1, 64], "kind": "input"})
    'x 1x64'
    """
    text = f"{block['name']} {'x'.join(map(str, block['shape']))}"
    return text.removeprefix("input ") if block["kind"] == "input" else f"{text} ({block['kind']})"


def _coverage(coverage: Coverage) -> Section:
    """Return how many operations were understood, those that were not, and how to add a rule."""
    line = (
        f"{coverage.understood} of {coverage.ops} operations understood, "
        f"{100 * coverage.parameters:.4g} % of {coverage.parameters_total:,} parameters"
    )
    if not coverage.opaque:
        return Section("coverage", (line,))
    rows = tuple(
        (o.op, o.module or o.name, "no finite constant" if o.known else "unknown", o.reason) for o in coverage.opaque
    )
    columns = ("operation", "where", "what", "why")
    table, said = shortened(Table(columns, rows, columns), (), everything=False)
    unknown = [o for o in coverage.opaque if not o.known]
    if unknown:
        rule = f'normscope.register_rule("{unknown[0].op}", rule)'
        said = (*said, f"register a rule for the unknown operation with {rule}: see docs/rules.md")
    return Section("coverage", (line,), table, said)


def around_section(around: Around) -> Section:
    """Return what holds around the data, radius by radius.

    >>> from normscope.core.around_data import Neighbourhood
    >>> found = Around(0.95, 0.99, 2, 90, (Neighbourhood(0.1, (2.0, 3.0), None),))
    >>> around_section(found).table.rows[0][:4]
    ('0.1', '-', '3', '3')
    """
    share = f"{100 * around.share:g} %"
    columns = ("within", f"{share} of inputs", "median point", "largest", "no constant")
    rows = tuple(
        (f"{n.radius:g}", value_text(n.bound), _plain(n.median), _plain(n.largest), str(n.unbounded))
        for n in around.neighbourhoods
    )
    lines = (
        f"constants on balls around {around.points:,} data points, each certified, "
        "including rounding unless a note says otherwise",
        f"{share} of inputs: at least this share of inputs like these stays below it, with "
        f"confidence {100 * around.confidence:g} %",
        f"assumed: {'; '.join(ASSUMPTIONS)}",
    )
    after = list(around.notes)
    if around.radii:
        steps = [n.radius for n in around.neighbourhoods if n.radius > 0]
        parts = ", ".join(f"{100 * around.decided(r):.3g} % within {r:g}" for r in steps)
        after.append(f"decisions proved not to change: {parts or 'none'} of these points")
    return Section("around the data", lines=lines, table=Table(columns, rows), after=tuple(after))


def _plain(number: float) -> str:
    return "no bound" if math.isinf(number) else digits(number)


def _end_to_end(values: Mapping[str, Value | None], *, printed: bool) -> Section:
    """Return the end-to-end constants, each with its guarantee."""
    rows, folded = [], False
    notes: dict[str, str] = {}
    for key, words, below in END_TO_END:
        value = values.get(key)
        if value is None:
            continue
        if value.kind is Kind.PRINTED and not printed:
            folded = True
            continue
        gap = _gap(value, values.get(below)) if below is not None else NOTHING
        domain = value.domain
        if len(domain) > LONG:  # below the table: in a narrow column it would take many lines
            domain = notes.setdefault(domain, f"note {len(notes) + 1}")
        kind = kind_text(value) if value.log < math.inf else NOTHING
        rows.append((words, value_text(value), kind, gap, value.mode or NOTHING, domain))
    columns = ("constant", "value", "kind", "over attained", "mode", "domain")
    table = Table(columns, tuple(rows), ("constant", "kind", "mode", "domain"))
    if len({row[4] for row in rows} - {NOTHING}) <= 1:
        table = without_column(table, "mode")  # the model has one mode, which is said above
    after = [f"{note}: {domain}" for domain, note in notes.items()]
    return Section("end to end", table=without_empty(table), after=(*after, *((FOLDED,) if folded else ())))


def gap_section(gap: Gap) -> Section:
    """Return the causes of the gap between the bound and the attained value.

    >>> from normscope.core.gap import Share
    >>> found = gap_section(Gap("global", (Share("fc", "activation patterns", 1.0), Share("x", "chains", -0.5))))
    >>> found.table.rows[0]
    ('fc', 'activation patterns', '+1.00')
    """
    bound = "on all inputs" if gap.bound == "global" else "on the variance-floor domain"
    causes = ", ".join(f"{cause} {log10:+.2f}" for cause, log10 in gap.by_cause().items())
    lines = (
        f"the bound {bound} is {number_text(gap.log10)} times the attained value; on the most costly path: {causes}",
        "each row shows the decades that a step adds to the gap; these are estimates, since the "
        "attained value may not be the maximum",
    )
    order = sorted(gap.shares, key=lambda share: -abs(share.log10))
    rows = tuple((s.name, s.cause, f"{s.log10:+.2f}") for s in order[:LARGEST_SHARES])
    first = next((cause for cause, log10 in gap.by_cause().items() if cause in ADVICE and log10 > 0.1), None)
    after = [] if len(order) <= LARGEST_SHARES else [f"{len(order) - LARGEST_SHARES} more steps add less"]
    after += [] if first is None else [f"to reduce it first: {ADVICE[first]}"]
    columns = ("step", "cause", "decades")
    return Section("where the gap comes from", lines, Table(columns, rows, columns[:2]), tuple(after))


def _gap(value: Value, attained: Value | None) -> str:
    """Return the ratio of an upper number to the attained one; a printed number below it is not a bound."""
    if attained is not None and value.kind is Kind.PRINTED and value.log < attained.log:
        return "not a bound"
    return factor_text(value, attained)


def _normalizers(result: Result, everything: bool, printed: bool) -> Section:
    """Return the constants of every normalizer: certified, on the variance floor, and printed in papers."""
    titles = ("normalizer", "kind", "certified", "on floor", "least std", "eps", "printed", "a bound")
    columns = titles if printed else titles[:-2]
    rows = tuple(_normalizer_row(n)[: len(columns)] for n in result.normalizers)
    table = Table(columns, rows, ("normalizer", "kind", "a bound"))
    table, said = shortened(table, result.blocks, everything=everything)
    table = without_empty(table)
    if "least std" in table.columns:
        least = "least std: the smallest standard deviation before the normalizer in your data"
        said = (*said, f"{least}; for running statistics, that of the running variance")
    return Section("normalizers", table=table, after=said)


def _normalizer_row(n: NormalizerResult) -> tuple[str, ...]:
    """Return the cells of one normalizer, those about papers last."""
    bound = NOTHING if n.printed_is_bound is None else ("yes" if n.printed_is_bound else "no")
    least = n.details.get("std_min") if n.floor is None else n.floor
    numbers = (value_text(n.proved), value_text(n.on_floor), float_text(least), float_text(n.details.get("eps")))
    return (n.name, n.kind, *numbers, value_text(n.printed), bound)


def _layers(result: Result, everything: bool) -> Section:
    """Return lower and upper bounds on the norm of every linear layer, alone and folded with its normalizer."""
    columns = ("layer", "kind", "shape", "attained", "certified", "width", "folded")
    rows = tuple(_layer_row(x) for x in result.layers)
    table = Table(columns, rows, ("layer", "kind", "shape"))
    table, said = shortened(table, result.blocks, everything=everything)
    if any(x.folded is not None for x in result.layers):
        said = (*said, "folded: the norm together with the fixed normalization after it, ||diag(gamma/sigma) W||")
    return Section("layers", table=without_empty(table), after=said)


def _layer_row(x: LayerResult) -> tuple[str, ...]:
    """Return the cells of one layer; width is upper over lower, less one."""
    gap = x.upper.log - x.lower.log
    width = digits(math.expm1(gap)) if math.isfinite(gap) and gap < 20 else NOTHING
    shape = "x".join(map(str, x.shape))
    return (x.name, x.kind, shape, value_text(x.attained), value_text(x.upper), width, value_text(x.folded))


def _effect(effect: Mapping[str, Any], printed: bool) -> Section | None:
    """Return the effect of the normalizers on the bound, each number with its caveat."""
    rows, after = [], []
    for key, words in EFFECTS.items():
        item = effect.get(key)
        if item is None or (item["kind"] == Kind.PRINTED.value and not printed):
            continue
        rows.append((words, number_text(item["log10"]), item["kind"]))
        if "weights_log10" in item:
            rows.append(("  the same layers without them, prod ||W||", number_text(item["weights_log10"]), "certified"))
        after.append(f"{words.partition(' ||')[0]}: {item['note']}")
    if not rows:
        return None
    table = Table(("quantity", "value", "kind"), tuple(rows), ("quantity", "kind"))
    return Section("what normalizers change", table=table, after=tuple(after))


def _statistics(result: Result, everything: bool) -> Section:
    facts = result.statistics
    lines = [f"{int(facts['samples']):,} samples"] if "samples" in facts else []
    for i, item in enumerate(facts.get("inputs", ())):
        low, high, norm = (float_text(item[key]) for key in ("low", "high", "largest_norm"))
        lines.append(f"input {i}: entries from {low} to {high}, largest norm {norm}")
    columns = ("before activation", "variance mean", "min", "max", "largest norm")
    keys = ("variance_mean", "variance_min", "variance_max", "largest_norm")
    rows = tuple(
        (str(item["name"]), *(float_text(item[key]) for key in keys)) for item in facts.get("before_activations", ())
    )
    if not rows:
        return Section("statistics of the data", lines=tuple(lines))
    table = Table(columns, rows, ("before activation",))
    table, said = shortened(table, result.blocks, everything=everything)
    return Section("statistics of the data", lines=tuple(lines), table=table, after=said)


def compare_section(results: Mapping[str, Result], facts: Facts | None = None) -> Section:
    """Return results side by side as a section, one column per result; the formulas of papers are left out.

    Args:
        results: results by the name of their column.
        facts: more rows, each a name and one cell per result, shown first.

    Raises:
        ValueError: if a row of facts does not have one cell per result.
    """
    rows: list[tuple[str, ...]] = []
    for name, cells in checked_facts(facts or {}, len(results)).items():
        rows.append((name, *cells, NOTHING))
    for radius in shared_radii(results.values()):
        bounds = [bound_within(result, radius) for result in results.values()]
        held = [b for b in bounds if b is not None]
        if held:
            where = f"within {radius:g} of" if radius else "at"
            words = f"{where} {100 * next(r.around.share for r in results.values() if r.around):g} % of inputs"
            rows.append((words, *(value_text(b) for b in bounds), kind_text(held[0])))
    for words, values in compare_rows(list(results.values())):
        first = next(v for v in values if v is not None)
        if first.kind is not Kind.PRINTED:
            rows.append((words, *map(value_text, values), kind_text(first)))
    columns = ("constant", *results, "kind")
    return Section("side by side", table=Table(columns, tuple(rows), ("constant", "kind")))


def effect_value(item: Mapping[str, Any]) -> Value:
    """Return a number of a result's ``effect`` as a value."""
    return Value.from_dict({**item, "domain": "the network as it is", "mode": None, "statement": ""})


def compare_rows(results: Sequence[Result]) -> list[tuple[str, list[Value | None]]]:
    """Return the constants that some of the results have, side by side."""
    rows: list[tuple[str, list[Value | None]]] = []
    for key, words, _ in END_TO_END:
        rows.append((words, [r.end_to_end.get(key) for r in results]))
    for key, words in EFFECTS.items():
        items = [r.effect.get(key) for r in results]
        rows.append((words, [None if item is None else effect_value(item) for item in items]))
    return [row for row in rows if any(value is not None for value in row[1])]


def shared_radii(results: Iterable[Result]) -> list[float]:
    """Return the radii around the data for which some result has bounds."""
    return sorted({n.radius for r in results if r.around is not None for n in r.around.neighbourhoods})


def bound_within(result: Result, radius: float) -> Value | None:
    """Return the bound of a result within a radius of the data, if it has one."""
    rows = () if result.around is None else result.around.neighbourhoods
    return next((n.bound for n in rows if n.radius == radius), None)


def checked_facts(facts: Facts, count: int) -> Facts:
    """Return rows of facts unchanged; raise an error if one does not have one cell per result."""
    for name, cells in facts.items():
        if len(cells) != count:
            raise ValueError(f"Expected one cell for each of {count} results in {name}, got {len(cells)}.")
    return facts
