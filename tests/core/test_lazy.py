"""Names that are imported when they are first used: all of them exist, and nothing is loaded before."""

from __future__ import annotations

import importlib
import math
import subprocess
import sys
from pathlib import Path

import pytest

import normscope
from normscope.cli.main import app
from normscope.core.lazy import lazy_names, modules_in

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


def test_a_missing_module_is_an_error_of_the_stub(tmp_path: Path) -> None:
    """A name that leads nowhere says which module is missing, not that the name is unknown."""
    (tmp_path / "__init__.pyi").write_text("from normscope.core.nowhere import gone as gone\n")
    load, _, _ = lazy_names("normscope", str(tmp_path / "__init__.py"))
    with pytest.raises(ModuleNotFoundError, match="nowhere"):
        load("gone")


def test_a_name_may_have_another_name_inside(tmp_path: Path) -> None:
    (tmp_path / "__init__.pyi").write_text("from math import sqrt as sqrt\n\nVERSION: str\nroot = sqrt\n")
    load, names, public = lazy_names("normscope", str(tmp_path / "__init__.py"))
    assert load("root") is math.sqrt
    assert names() == sorted(public) == ["VERSION", "root", "sqrt"]


@pytest.mark.turns(2)
def test_folders_need_no_import_of_their_own() -> None:
    """``import normscope`` is enough for ``normscope.geometry.conservation``."""
    program = "import normscope; print(normscope.weight_normalization.verify.__name__, normscope.geometry.__name__)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["verify", "normscope.geometry"], done.stderr


VERBS = [str(command.name) for command in app.registered_commands]


def test_every_verb_has_its_function() -> None:
    """On the command line and in Python, by the same name; the rest only shows, writes or sets up."""
    shown = {"demo", "report", "version"}
    assert set(VERBS) - shown <= set(normscope.__all__)


def test_every_module_of_a_package_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "a_folder_of_rules"
    (package / "inner").mkdir(parents=True)
    for name in ("__init__", "second", "first", "inner/__init__"):
        (package / f"{name}.py").write_text(f"NAME = {name!r}\n")
    monkeypatch.syspath_prepend(tmp_path)
    try:
        assert [module.NAME for module in modules_in(package.name)] == ["first", "second"]
    finally:
        for name in [name for name in sys.modules if name.startswith(package.name)]:
            del sys.modules[name]
