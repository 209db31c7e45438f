"""Networks that attain or break the bounds: builders with a prescribed constant, to test any Lipschitz tool with.

All builders raise an :class:`~normscope.core.errors.InputError` if an argument is out of range.
"""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
