"""Checks for people who add an operator or a bound, and for people who doubt one."""

from normscope.testing.refutation import Attack, Refutation
from normscope.testing.refute import refute
from normscope.testing.upper_bound import UpperBoundCheck, check_upper_bound

__all__ = ["Attack", "Refutation", "UpperBoundCheck", "check_upper_bound", "refute"]
