"""Normscope: what normalization layers do to your network.

The names below are loaded when they are first used, so that ``import normscope`` stays quick and does not import torch.
"""

from normscope.core.lazy import lazy_names

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
