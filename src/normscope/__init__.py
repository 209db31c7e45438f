"""Normscope: what normalization layers do to your network.

Public and stable are the names in ``normscope.__all__``, and those in the ``__all__`` of its packages, such as
``normscope.zoo``, ``normscope.monitor`` and ``normscope.testing``. Everything else may change.

The names are loaded when they are first used, so that ``import normscope`` stays quick and does not import torch.
"""

from normscope.core.lazy import lazy_names

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
