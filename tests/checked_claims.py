"""The claims of the papers, each checked once for all tests that read what was found."""

from __future__ import annotations

import functools

from normscope.papers.audit import CheckedClaim, check_claim, every_claim


@functools.cache
def claim_entry(id: str) -> CheckedClaim:
    """Return what the check of a claim found."""
    return check_claim(every_claim()[id])
