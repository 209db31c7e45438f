"""Generalization: where the error of a trained model comes from, and which guarantees hold for it.

All functions raise an :class:`~normscope.core.errors.InputError` if a number is out of its range or arguments
do not fit together.
"""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
