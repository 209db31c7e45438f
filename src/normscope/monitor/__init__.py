"""Quantities over time: a monitor beside a training run, and the run it leaves behind.

The names are loaded when they are first used: reading a run needs no torch.
"""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
