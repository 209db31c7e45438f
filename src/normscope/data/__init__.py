"""Data sets read from their standard files, and one that needs none.

Nothing here imports torch before it is used.
"""

from __future__ import annotations

import importlib
from typing import Any

_WHERE = {
    "Batch": "source",
    "Data": "source",
    "Records": "source",
    "Normalization": "normalization",
    "PRESETS": "normalization",
    "DATASETS": "load",
    "load_data": "load",
}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first asked for."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)


def __dir__() -> list[str]:
    """Return the public names."""
    return sorted(_WHERE)
