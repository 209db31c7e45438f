"""Public names of a package that are imported when they are first used, so that the package itself loads quickly."""

import ast
import contextlib
import importlib
import os
import pkgutil
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


def lazy_names(package: str, file: str) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Return the ``__getattr__``, ``__dir__`` and ``__all__`` of a package that offers names it has not imported yet.

    The names are in one place, the stub ``__init__.pyi`` beside the package, as ``from MODULE import NAME as NAME``
    or ``OTHER = NAME``: type checkers and editors read it, and so does this function.

    >>> import normscope
    >>> load, names, public = lazy_names("normscope", normscope.__file__)
    >>> load("Value").__name__, "Value" in names()
    ('Value', True)
    >>> load("nonsense")
    Traceback (most recent call last):
        ...
    AttributeError: module 'normscope' has no attribute 'nonsense'
    """
    stub = ast.parse(Path(file).with_suffix(".pyi").read_text(encoding="utf-8"))
    imports = [node for node in stub.body if isinstance(node, ast.ImportFrom)]
    where = {alias.name: (str(node.module), alias.name) for node in imports for alias in node.names}
    for node in (node for node in stub.body if isinstance(node, ast.Assign)):
        where[ast.unparse(node.targets[0])] = where[ast.unparse(node.value)]
    own = [ast.unparse(node.target) for node in stub.body if isinstance(node, ast.AnnAssign)]
    public = [*own, *where]

    def load(name: str) -> Any:
        """Import a public name, or a folder of the package, when it is first used."""
        if name not in where and (Path(file).parent / name / "__init__.py").is_file():
            with same_process():
                return importlib.import_module(f"{package}.{name}")
        if name not in where:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module, attribute = where[name]
        with same_process():  # libraries change it as they are imported
            found = importlib.import_module(module)
            return getattr(found, attribute, None) or importlib.import_module(f"{module}.{attribute}")

    return load, lambda: sorted(public), public


@contextlib.contextmanager
def same_process() -> Iterator[None]:
    """Leave the environment variables and the warning filters as they were, whatever the block imports or runs.

    >>> import os
    >>> with same_process():
    ...     os.environ["NORMSCOPE_EXAMPLE"] = "1"
    >>> "NORMSCOPE_EXAMPLE" in os.environ
    False
    """
    before = dict(os.environ)
    with warnings.catch_warnings():
        try:
            yield
        finally:
            for key in os.environ.keys() - before.keys():
                del os.environ[key]
            os.environ |= {key: value for key, value in before.items() if os.environ.get(key) != value}


def late(module: str, name: str) -> Any:
    """Import a module now and return one of its names, for methods that show their object in a view.

    Modules of data do not import modules of views; a method may still offer a view if it imports it only when called.

    >>> late("math", "sqrt")(4.0)
    2.0
    """
    return getattr(importlib.import_module(module), name)


def modules_in(package: str) -> tuple[ModuleType, ...]:
    """Import every module of a package, by name, and return them; packages inside it are left out.

    >>> [module.__name__ for module in modules_in("xml.dom")][:2]
    ['xml.dom.NodeFilter', 'xml.dom.domreg']
    """
    found = pkgutil.iter_modules(importlib.import_module(package).__path__)
    names = sorted(module.name for module in found if not module.ispkg)
    return tuple(importlib.import_module(f"{package}.{name}") for name in names)
