"""Iteration counts that follow from Lipschitz constants: as printed, and as the theorems behind them say.

All functions raise an :class:`~normscope.core.errors.InputError` if a number is not positive.
"""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
