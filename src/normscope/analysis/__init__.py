"""One analysis, put together: model and data in, result out."""

from normscope.analysis.capacity import analyze
from normscope.analysis.options import Options

__all__ = ["Options", "analyze"]
