"""Data sets read from their standard files, and one that needs none.

Nothing here imports torch before it is used.
"""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
