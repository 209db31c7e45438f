"""The zoo: the papers' networks and common architectures, each with any normalizer; and loading of users' models.

Nothing here imports torch before it is used.
"""

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(__name__, __file__)
