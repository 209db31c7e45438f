"""The zoo: the papers' networks and common architectures, each with any normalizer; and loading of users' models.

Nothing here imports torch before it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "ZOO": "zoo",
    "ZooEntry": "zoo",
    "build": "zoo",
    "example_input": "zoo",
    "ModelOrigin": "load",
    "load_model": "load",
    "check_model": "check",
    "read_state_dict": "weights",
    "load_weights": "weights",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(_WHERE)
