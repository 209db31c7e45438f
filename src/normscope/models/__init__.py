"""The zoo: the papers' networks and common architectures, each with any normalizer; and loading of users' models.

Nothing here imports torch before it is used.
"""

from __future__ import annotations

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "ZOO": "zoo",
        "ZooEntry": "zoo",
        "build": "zoo",
        "example_input": "zoo",
        "ModelOrigin": "load",
        "load_model": "load",
        "check_model": "check",
        "read_state_dict": "weights",
        "load_weights": "weights",
    },
)
