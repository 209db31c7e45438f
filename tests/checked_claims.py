"""The claims of the papers, each checked once for all tests that read what was found."""

from __future__ import annotations

import functools

from normscope.papers.run import Entry, checked, every_claim


@functools.cache
def claim_entry(id: str) -> Entry:
    """Return what the check of a claim found."""
    return checked(every_claim()[id])
