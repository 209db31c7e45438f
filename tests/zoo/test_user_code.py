"""Users' files: run once, explained when they fail, and without traces in the interpreter."""

from __future__ import annotations

import os
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from normscope.core.errors import FactoryError, ModelNotFoundError
from normscope.zoo.user_code import (
    Home,
    call_factory,
    callables_in_source,
    find_factory,
    import_file,
    import_module,
    undisturbed,
)


def written(folder: Path, name: str, text: str) -> Path:
    """Return the absolute path of a new file."""
    path = folder / name
    path.write_text(text)
    return path.resolve()


def _home(folder: Path) -> Home:
    """Return the home of a file in a folder."""
    return Home(folder.resolve(), str(folder.resolve() / "net.py"), is_file=True)


def test_the_interpreter_is_as_before(tmp_path: Path) -> None:
    """Path, arguments, directory, settings and neighbours; libraries imported inside stay."""
    written(tmp_path, "neighbour_of_test.py", "VALUE = 3")
    path, cwd, modules = list(sys.path), Path.cwd(), set(sys.modules)
    dtype, state = torch.get_default_dtype(), torch.get_rng_state()
    argv, filters, errors = list(sys.argv), list(warnings.filters), np.geterr()
    with undisturbed(_home(tmp_path), 0):
        import neighbour_of_test

        assert neighbour_of_test.VALUE == 3
        os.chdir(tmp_path)
        sys.path.append("somewhere")
        torch.set_default_dtype(torch.float64)
        torch.set_grad_enabled(False)
        torch.rand(3)
        assert sys.argv == [str(tmp_path.resolve() / "net.py")]
        sys.argv.append("--more")
        warnings.simplefilter("error")
        np.seterr(all="raise")
    assert (argv, filters, errors) == (sys.argv, list(warnings.filters), np.geterr())
    assert (path, cwd, dtype) == (list(sys.path), Path.cwd(), torch.get_default_dtype())
    assert torch.is_grad_enabled()
    assert torch.equal(state, torch.get_rng_state())
    assert "neighbour_of_test" not in sys.modules
    assert modules <= set(sys.modules)
    assert not (tmp_path / "__pycache__").exists()


def test_libraries_below_the_folder_are_kept(tmp_path: Path) -> None:
    """Only what the folder itself put on the path is forgotten."""
    (tmp_path / "lib").mkdir()
    written(tmp_path / "lib", "library_of_test.py", "")
    sys.path.append(str(tmp_path / "lib"))
    try:
        with undisturbed(_home(tmp_path), 0):
            import library_of_test  # noqa: F401
        assert "library_of_test" in sys.modules
    finally:
        sys.path.remove(str(tmp_path / "lib"))
        sys.modules.pop("library_of_test", None)


def test_two_files_of_one_name_are_two_modules(tmp_path: Path) -> None:
    """And each stays importable for its classes."""
    modules = []
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        file = written(tmp_path / folder, "net.py", f"class Net: name = {folder!r}")
        modules.append(import_file(file))
    assert [module.Net.name for module in modules] == ["a", "b"]
    assert all(sys.modules[module.Net.__module__] is module for module in modules)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1\nraise ValueError('no weights')", r"ValueError: no weights at .*net\.py, line 2 \(raise ValueError"),
        ("x = 1\n\ndef f(:\n", r"SyntaxError: invalid syntax at .*net\.py, line 3"),
        ("import sys\nsys.exit(3)", r"SystemExit: 3 at .*net\.py, line 2"),
        ("import no_such_library_at_all", r"line 1.*Install no_such_library_at_all or put it next to the file"),
        ("from . import other", r"line 1.*Name the model by its package instead"),
    ],
)
def test_failing_files_show_their_own_error(tmp_path: Path, text: str, message: str) -> None:
    """Type, message and line; and no half-made module is left."""
    before = set(sys.modules)
    with pytest.raises(FactoryError, match=rf"Importing net\.py failed with .*{message.lstrip()}"):
        import_file(written(tmp_path, "net.py", text))
    assert not {name for name in set(sys.modules) - before if name.startswith("normscope_user")}


def test_the_line_shown_is_the_users(tmp_path: Path) -> None:
    """Not the line inside the library their line calls."""
    file = written(tmp_path, "net.py", "import torch\n\ndef build():\n    return torch.nn.Linear(-3, 2)\n")
    module = import_file(file)
    with pytest.raises(FactoryError, match=r"RuntimeError: .*net\.py, line 4 \(return torch\.nn\.Linear"):
        call_factory(module.build, "net.py:build", {}, str(file))


def test_modules_by_name(tmp_path: Path) -> None:
    """Absent ones are not found; those that fail are explained."""
    assert import_module("torch.nn") is nn
    with pytest.raises(ModelNotFoundError, match="No module named 'no_such_package_at_all'"):
        import_module("no_such_package_at_all.models")
    with pytest.raises(ModelNotFoundError, match=r"No module named 'torch\.nothing_here'"):
        import_module("torch.nothing_here")
    written(tmp_path, "broken_module_of_test.py", "import also_missing_here")
    with (
        undisturbed(_home(tmp_path), 0),
        pytest.raises(FactoryError, match="Install also_missing_here"),
    ):
        import_module("broken_module_of_test")


def test_missing_factories_list_the_callables(tmp_path: Path) -> None:
    """The file's own first."""
    text = "from torch import nn\nfrom os.path import join\nSIZE = 3\ndef small(): ...\nclass Net(nn.Module): ...\n"
    module = import_file(written(tmp_path, "net.py", text))
    with pytest.raises(ModelNotFoundError, match=r"net\.py has no 'big'\. Callables there: Net, small, join"):
        find_factory(module, "big", "net.py")
    with pytest.raises(ModelNotFoundError, match=r"to be a model, or a function or class.*got int"):
        find_factory(module, "SIZE", "net.py")
    assert find_factory(module, "Net", "net.py") is module.Net


@pytest.mark.parametrize(
    ("factory", "returned"),
    [
        (lambda: None, "NoneType"),
        (lambda: (nn.Linear(1, 1), 3), "tuple"),
        (lambda: nn.Linear, "the class Linear itself"),
    ],
)
def test_other_results_are_refused(factory, returned: str) -> None:
    """A factory returns the network."""
    with pytest.raises(FactoryError, match=f"to return a torch.nn.Module, got {returned}"):
        call_factory(factory, "net.py:build", {}, None)


def test_required_arguments_are_refused_before_the_call() -> None:
    """Unless they are given; unknown ones are refused as well."""
    calls = []

    def build(width: int, depth: int = 2) -> nn.Module:
        calls.append(width)
        return nn.Linear(width, depth)

    with pytest.raises(FactoryError, match="with no arguments: missing a required argument: 'width'"):
        call_factory(build, "build", {}, None)
    with pytest.raises(FactoryError, match="unexpected keyword argument 'heigth'"):
        call_factory(build, "build", {"width": 3, "heigth": 2}, None)
    assert calls == []
    assert call_factory(build, "build", {"width": 3}, None).in_features == 3


def test_a_model_in_place_of_a_factory_is_taken_as_it_is() -> None:
    """Calling it would run it instead."""
    model = nn.Linear(1, 1)
    assert call_factory(model, "model", {}, None) is model


def test_source_is_listed_without_running_it(tmp_path: Path) -> None:
    """Broken and binary files list nothing."""
    file = written(tmp_path, "net.py", "raise SystemExit\ndef build(): ...\nasync def later(): ...\n")
    assert callables_in_source(file) == ["build"]
    models = written(tmp_path, "models.py", "a = nn.Linear(2, 2)\n_b = Net()\nseed = int(3)\nc = 1\n")
    assert callables_in_source(models) == ["a"]
    assert callables_in_source(written(tmp_path, "bad.py", "def (")) == []
    (tmp_path / "binary.py").write_bytes(b"\x00\xff")
    assert callables_in_source(tmp_path / "binary.py") == []


def test_a_home_that_is_opened_again_has_the_same_neighbours(tmp_path: Path) -> None:
    """None is run twice, new ones can be imported, and in between there is nothing of them."""
    written(tmp_path, "early_of_test.py", "class Scale: ...")
    written(tmp_path, "late_of_test.py", "from early_of_test import Scale")
    home, path, argv = _home(tmp_path), list(sys.path), list(sys.argv)
    with home.open():
        from early_of_test import Scale
    assert "early_of_test" not in sys.modules
    with home.open():
        import late_of_test

        assert late_of_test.Scale is Scale
    assert not {"early_of_test", "late_of_test"} & set(sys.modules)
    assert (path, argv) == (sys.path, sys.argv)
    assert not (tmp_path / "__pycache__").exists()


def test_a_neighbour_does_not_replace_a_module_of_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was imported under that name before and after is there again when the home is closed."""
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        written(tmp_path / folder, "same_of_test.py", f"WHERE = {folder!r}")
    homes = [_home(tmp_path / folder) for folder in ("a", "b")]
    for _ in range(2):
        for home, where in zip(homes, ("a", "b"), strict=True):
            with home.open():
                import same_of_test

                assert where == same_of_test.WHERE
    other = type(sys)("same_of_test")
    monkeypatch.setitem(sys.modules, "same_of_test", other)
    with homes[0].open():
        assert sys.modules["same_of_test"].WHERE == "a"
    assert sys.modules["same_of_test"] is other


def test_names_that_are_no_text(tmp_path: Path) -> None:
    """A file may be called by any bytes; its module's name is text."""
    file = tmp_path.resolve() / "n\udcff-1.py"
    file.write_text("class Net: ...")
    module = import_file(file)
    assert module.Net.__module__.isidentifier()
    assert module.Net.__module__.startswith("normscope_user_n__1_")


def test_modules_that_answer_for_their_names(tmp_path: Path) -> None:
    """What they raise is shown as their own."""
    text = "def __getattr__(name): raise ImportError(f'{name} needs flash_attn')\n"
    module = import_file(written(tmp_path, "late.py", text))
    with pytest.raises(FactoryError, match=r"Looking up Net in late\.py failed .*Net needs flash_attn at .*line 1"):
        find_factory(module, "Net", "late.py")


class _Bare(nn.Module):
    """A module that forgets its base."""

    def __init__(self) -> None:
        self.scale = 3


@pytest.mark.parametrize("factory", [_Bare, lambda: nn.Sequential(nn.ReLU(), _Bare()), _Bare()])
def test_a_constructor_that_was_forgotten_is_named(factory) -> None:
    """At the top, below it, and where a model is named itself."""
    with pytest.raises(FactoryError, match=r"A module of net\.py:Net does not call super\(\).__init__\(\).*'_Bare'"):
        call_factory(factory, "net.py:Net", {}, None)


def test_a_model_takes_no_arguments() -> None:
    """They are not dropped in silence."""
    with pytest.raises(FactoryError, match="already a model and takes no arguments, got width"):
        call_factory(nn.Linear(1, 1), "net.py:model", {"width": 3}, None)


def test_a_file_that_may_not_be_read_lists_nothing(tmp_path: Path) -> None:
    """It is no place to look for factories."""
    assert callables_in_source(tmp_path) == []
