"""Names that are imported when they are first used: all of them exist, and nothing is loaded before."""

from __future__ import annotations

import importlib
import subprocess
import sys

import pytest

import normscope
from normscope.core.lazy import lazy_names

PACKAGES = ["normscope", "normscope.zoo", "normscope.zoo.data"]


@pytest.mark.parametrize("name", PACKAGES)
def test_every_public_name_is_there(name: str) -> None:
    """Listed, loadable, and the same object each time."""
    package = importlib.import_module(name)
    assert dir(package) == sorted(package.__all__)
    for public in package.__all__:
        assert getattr(package, public) is getattr(package, public)


@pytest.mark.parametrize("name", PACKAGES)
def test_other_names_are_refused(name: str) -> None:
    """As any module refuses them."""
    package = importlib.import_module(name)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nonsense'"):
        _ = package.nonsense
    assert not hasattr(package, "nonsense")


def test_star_imports_take_the_public_names() -> None:
    """With the version, which is no function."""
    scope: dict[str, object] = {}
    exec("from normscope import *", scope)
    assert set(normscope.__all__) <= set(scope)
    assert scope["__version__"] == normscope.__version__


@pytest.mark.parametrize("name", PACKAGES)
def test_nothing_is_loaded_before_it_is_used(name: str) -> None:
    """A fresh interpreter that lists the names has not seen torch; one that takes a name has its module."""
    program = f"import sys, {name} as package\ndir(package)\nprint('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_a_missing_module_is_an_error_of_the_table() -> None:
    """A name that leads nowhere says which module is missing, not that the name is unknown."""
    load, _, _ = lazy_names("normscope", {"gone": "core.nowhere"})
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        load("gone")
