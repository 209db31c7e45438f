"""The doctor: rules with stable codes that look at a model, its data and its optimizer."""

from normscope.checks.run import CheckResult, check
from normscope.checks.settings import Settings

__all__ = ["CheckResult", "Settings", "check"]
