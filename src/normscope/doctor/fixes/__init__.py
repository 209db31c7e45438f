"""What can be mended in the weights without changing the function, and is verified not to."""

from normscope.doctor.fixes.run import FixResult, fix

__all__ = ["FixResult", "fix"]
