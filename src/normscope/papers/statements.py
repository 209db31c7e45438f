"""The whole registry of statements: every module that registers one is imported first."""

from __future__ import annotations

import importlib
from pathlib import Path

from normscope.core.statement import Statement
from normscope.core.statement import statements as registered

_PACKAGE = "normscope"
_ROOT = Path(__file__).parents[1]
_MARK = "@statement("


def statement_modules() -> tuple[str, ...]:
    """Return the modules whose source uses the decorator: no list of them has to be kept.

    >>> "normscope.lipschitz.printed" in statement_modules()
    True
    """
    files = (file for file in sorted(_ROOT.rglob("*.py")) if _MARK in file.read_text(encoding="utf-8"))
    parts = (file.relative_to(_ROOT).with_suffix("").parts for file in files)
    return tuple(".".join((_PACKAGE, *(part for part in path if part != "__init__"))) for path in parts)


def every_statement() -> tuple[Statement, ...]:
    """Return every statement of ours, by paper, number and function.

    >>> any(s.label == "than2025 Lemma 1" for s in every_statement())
    True
    """
    for module in statement_modules():
        importlib.import_module(module)
    own = (s for s in registered() if s.function.startswith(f"{_PACKAGE}."))
    return tuple(sorted(set(own), key=lambda s: (s.paper, s.number, s.function)))
