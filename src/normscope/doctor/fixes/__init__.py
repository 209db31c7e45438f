"""Fixes of the weights that leave the function unchanged, each verified."""

from normscope.doctor.fixes.run import FixResult, fix

__all__ = ["FixResult", "fix"]
