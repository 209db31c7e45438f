"""Quantities over time: a monitor for training runs, and the runs it records.

Names are imported when they are first used: reading a run does not import torch.
"""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
