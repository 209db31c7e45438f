"""The doctor: rules with stable codes that check a model, its data and its optimizer."""

from normscope.doctor.run import CheckResult, UnhealthyError, assert_healthy, check
from normscope.doctor.settings import Settings

__all__ = ["CheckResult", "Settings", "UnhealthyError", "assert_healthy", "check"]
