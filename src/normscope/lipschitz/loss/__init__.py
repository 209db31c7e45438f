"""Losses: their Lipschitz constants with respect to the outputs of the network. One family, one file."""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
