"""Things that register themselves by lying in a folder: rules of operations, checks, quantities."""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType


def modules_in(package: str) -> tuple[ModuleType, ...]:
    """Import every module of a package, by name, and return them; packages inside it are left out.

    >>> [module.__name__ for module in modules_in("xml.dom")][:2]
    ['xml.dom.NodeFilter', 'xml.dom.domreg']
    """
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    names = sorted(module.name for module in found if not module.ispkg)
    return tuple(importlib.import_module(f"{package}.{name}") for name in names)
