"""Normscope: what normalization layers do to your network.

The names below are loaded when they are first used, so that ``import normscope`` stays quick and does not import torch.
"""

from __future__ import annotations

from typing import Any

__version__ = "0.1.0"

_PUBLIC = {
    "analyze": "normscope.analysis",
    "Options": "normscope.analysis",
    "Result": "normscope.core.result",
    "Value": "normscope.core.value",
    "Kind": "normscope.core.value",
    "NormscopeError": "normscope.core.errors",
    "register_rule": "normscope.operators.registry",
    "load_model": "normscope.models.load",
    "load_data": "normscope.data.load",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name: str) -> Any:
    """Load a public name on first use."""
    if name not in _PUBLIC:
        raise AttributeError(f"module 'normscope' has no attribute {name!r}")
    import importlib

    return getattr(importlib.import_module(_PUBLIC[name]), name)


def __dir__() -> list[str]:
    """List the public names."""
    return sorted(__all__)
