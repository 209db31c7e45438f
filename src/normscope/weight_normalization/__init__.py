"""Optimization and generalization guarantees for weight-normalized networks, with every constant explicit."""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
