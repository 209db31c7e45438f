"""Public names of a package that are imported when they are first used, so that the package itself loads at once."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import Any


def lazy_names(
    package: str, where: Mapping[str, str], also: tuple[str, ...] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return what a package needs to offer names it has not imported yet.

    Args:
        package: the package's own ``__name__``.
        where: the module below the package that defines each name, e.g. ``{"load_model": "models.load"}``.
        also: names the package defines itself.

    Returns:
        Its ``__getattr__``, ``__dir__`` and ``__all__``.

    >>> load, names, public = lazy_names("xml", {"parse": "etree.ElementTree"})
    >>> load("parse").__module__, names(), public
    ('xml.etree.ElementTree', ['parse'], ['parse'])
    >>> load("unparse")
    Traceback (most recent call last):
        ...
    AttributeError: module 'xml' has no attribute 'unparse'
    """
    public = [*also, *where]

    def load(name: str) -> Any:
        """Import a public name when it is first asked for."""
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(f"{package}.{where[name]}"), name)

    return load, lambda: sorted(public), public


def late(module: str, name: str) -> Any:
    """Return a name of a module that is imported now, for a method that shows its object in a view of a later folder.

    Data comes before its views; a method may still offer one, as long as nothing is imported before it is asked for.

    >>> late("math", "sqrt")(4.0)
    2.0
    """
    return getattr(importlib.import_module(module), name)
