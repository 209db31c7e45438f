"""Claims about a figure next to the measurements, as a table."""

from __future__ import annotations

from collections.abc import Sequence

from normscope.core.number_text import digits
from normscope.papers.than2025.figures.evidence import Evidence
from normscope.report.table import Section, Table

_WORDS = {True: "agrees", False: "does not", None: "not claimed"}


def evidence_section(figure: str, scale: str, evidence: Sequence[Evidence]) -> Section:
    """Return the claims around a figure as a section.

    Args:
        figure: which.
        scale: of its runs.
        evidence: what they show.

    >>> from normscope.report.table import plain_text
    >>> print(plain_text([evidence_section("fig1", "smoke", [Evidence("norms grow", "net", {"share": 0.5}, True)])]))
    fig1, smoke scale
      claim       network  measured   the run
      norms grow  net      share 0.5  agrees
    """
    columns = ("claim", "network", "measured", "the run")
    rows = tuple(
        (e.claim, e.network, ", ".join(f"{key} {digits(float(x))}" for key, x in e.measured.items()), _WORDS[e.agrees])
        for e in evidence
    )
    return Section(f"{figure}, {scale} scale", table=Table(columns, rows, frozenset(columns)))
