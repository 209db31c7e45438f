"""The code behind a model: the user's files are found, installed ones are told by version."""

from __future__ import annotations

import functools
import importlib.util
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from normscope.graph import source
from normscope.graph.source import (
    UnidentifiableError,
    installed,
    is_users,
    loaded_files,
    own_files,
    reachable_files,
    require_file,
    values_read,
)


class Net(nn.Module):
    """A model defined in this file."""

    def forward(self, x: Tensor) -> Tensor:
        """Run the model."""
        return x


def _load(path: Path, text: str) -> Any:
    """Write and import a file."""
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_whose_file_it_is(tmp_path: Path) -> None:
    """Installed code and the standard library are not the user's."""
    own = tmp_path / "own.py"
    own.write_text("")
    assert is_users(str(own))
    assert is_users(__file__)
    for other in (torch.__file__, functools.__file__, "<stdin>", str(tmp_path / "missing.py"), ""):
        assert not is_users(other), other


def test_files_that_can_be_reached() -> None:
    """The file of the class is among them; a model of torch's own reaches none."""
    files, _ = reachable_files(Net())
    assert source._hash(__file__) in files
    assert reachable_files(nn.Linear(2, 2))[0] == []


def test_functions_are_followed_through_globals_closures_and_attributes(tmp_path: Path) -> None:
    """Wherever a forward may call them from."""
    far = _load(tmp_path / "far.py", "def far(x):\n    return x\n")
    hidden = _load(tmp_path / "hidden.py", "def make(f):\n    def call(x):\n        return f(x)\n    return call\n")
    net = Net()
    net.step = hidden.make(far.far)
    files, _ = reachable_files(net)
    assert {source._hash(str(tmp_path / name)) for name in ("far.py", "hidden.py")} <= set(files)


def test_settings_beside_the_functions_count(tmp_path: Path) -> None:
    """A global that was set at run time is not in the file."""
    module = _load(
        tmp_path / "net.py",
        "from torch import nn\nFAST = False\nclass A(nn.Module):\n    def forward(self, x):\n        return x\n",
    )
    first = reachable_files(module.A())
    module.FAST = True
    second = reachable_files(module.A())
    assert first[0] == second[0]
    assert first[1] != second[1]


def test_functions_without_file_are_refused() -> None:
    """What they call cannot be followed."""
    require_file(_load)
    with pytest.raises(UnidentifiableError, match="not in a file"):
        require_file(eval("lambda x: x"))


def test_listings_are_complete_and_sorted() -> None:
    """Versions of what is installed, and the content of our own code."""
    assert ["torch", torch.__version__] in installed()
    names = [name for name, _ in own_files()]
    assert {"ir.py", "export.py", "dispatch.py", "source.py"} <= set(names)
    assert names == sorted(names)
    assert not any(name.split(".")[0] == "normscope" for name, _ in loaded_files())


def test_what_functions_read(tmp_path: Path) -> None:
    """Variables around them, defaults, globals by name, those of modules of the user, and the environment."""
    (tmp_path / "settings_of_net.py").write_text("SCALE = [2.0]\nOTHER = [3.0]\n")
    sys.path.insert(0, str(tmp_path))
    try:
        module = _load(
            tmp_path / "net.py",
            "import os\nimport settings_of_net\nUSED, UNUSED = {'a': 1}, {'b': 2}\n"
            "def make(gain):\n    def f(x, k=4):\n        return gain * x + settings_of_net.SCALE[0] + USED['a'] + k\n"
            "    return f\n"
            "def g(x):\n    return os.getenv('HOME')\n",
        )
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("settings_of_net", None)
    read = dict(values_read([module.make(7)]))
    assert read["make.<locals>.f.gain"] == 7
    assert read["make.<locals>.f.__defaults__"] == (4,)
    assert read["net.USED"] == {"a": 1}
    assert read["settings_of_net.SCALE"] == [2.0]
    assert not [name for name in read if "UNUSED" in name or "OTHER" in name or name == "environment"]
    assert dict(values_read([module.g]))["environment"] == dict(os.environ)
