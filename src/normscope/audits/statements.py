"""The whole registry of statements: every module that may register one is imported first."""

from __future__ import annotations

import importlib
import pkgutil

from normscope.core.statement import Statement
from normscope.core.statement import statements as registered

_PACKAGE = "normscope"
#: Folders whose functions implement statements.
FOLDERS = ("operators", "statistics", "lipschitz", "extremal", "geometry", "monitor")


def every_statement() -> tuple[Statement, ...]:
    """Return every statement of ours, by paper, number and function.

    >>> any(s.label == "than2025 Lemma 1" for s in every_statement())
    True
    """
    for folder in FOLDERS:
        package = importlib.import_module(f"{_PACKAGE}.{folder}")
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            importlib.import_module(module.name)
    own = (s for s in registered() if s.function.startswith(f"{_PACKAGE}."))
    return tuple(sorted(set(own), key=lambda s: (s.paper, s.number, s.function)))
