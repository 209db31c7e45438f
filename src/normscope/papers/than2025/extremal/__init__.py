"""Networks that attain or break the bounds: builders with a prescribed constant, to test any Lipschitz tool with."""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
