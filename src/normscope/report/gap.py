"""Where the gap between bound and attained value comes from, as a table."""

from __future__ import annotations

from normscope.core.gap import Gap
from normscope.core.number_text import number_text
from normscope.report.table import Section, Table

#: What lowers each part of a gap.
ADVICE = {
    "normalization": "normalizers: their constant is that of the smallest spread; try --radius, where it is local",
    "attention": "attention: its constant grows with the range of its input; try --radius, where it is local",
    "products": "products of activations: their constant grows with the range of the factors; try --radius",
    "activation patterns": "activation patterns: search longer (--time), or try --radius, where few of them can change",
    "linear layers": "layers whose worst directions do not align: search longer (--time)",
}
#: Steps of the network that are shown, the most expensive ones.
LARGEST_SHARES = 8


def gap_section(gap: Gap) -> Section:
    """Return where the gap between the bound and what is attained comes from.

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
    return Section("where the gap comes from", lines, Table(columns, rows, frozenset(columns[:2])), tuple(after))
