"""The steps of an analysis: from a model and data to a result.

The names are loaded when they are first used: the doctor needs the steps of an analysis, not all of it.
"""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
