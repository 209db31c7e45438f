"""Bugs and confusions around normalization that people reported in public, rebuilt small, each with its repaired twin.

Every case names the thread it comes from. The networks were written from the descriptions there; no code was copied.
"""

from benchmarks.doctor.case import CASES, Case, Setup

__all__ = ["CASES", "Case", "Setup"]
