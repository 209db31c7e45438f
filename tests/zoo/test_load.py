"""From a specification to a model, and one clear error for each mistake."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from normscope.core.errors import (
    FactoryError,
    ModelNotFoundError,
    NonFiniteError,
    NormscopeError,
    WeightsError,
)
from normscope.zoo.catalogue import build
from normscope.zoo.load import load_at_home, load_model, parse_spec


def _with_origin(spec: str, weights: Any = None, *, seed: int = 0, arguments: Any = None, **rest: Any) -> Any:
    """Return a model and where it came from."""
    return load_at_home(spec, weights, {**(arguments or {}), **rest}, seed)[:2]


NET = """
import os, sys
import torch
from torch import nn
from layers_of_test import Scale

RAN = []

class Net(nn.Module):
    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(3, width)
        self.scale = Scale()

    def forward(self, x):
        return self.scale(self.linear(x))

def build():
    from lazy_of_test import VALUE
    os.chdir("/")
    torch.set_default_dtype(torch.float64)
    torch.set_default_dtype(torch.float32)
    RAN.append(VALUE)
    return Net()

def unused():
    raise SystemExit("must not run")

model = Net(2)

def broken():
    net = Net()
    nn.init.constant_(net.linear.bias, float("inf"))
    return net

def on_meta():
    with torch.device("meta"):
        return Net()
"""


@pytest.fixture
def net(tmp_path: Path) -> Path:
    """Return a model file with neighbours."""
    (tmp_path / "layers_of_test.py").write_text(
        "from torch import nn\nclass Scale(nn.Module):\n    def forward(self, x):\n        return 2 * x\n"
    )
    (tmp_path / "lazy_of_test.py").write_text("VALUE = 7\n")
    (tmp_path / "net.py").write_text(NET)
    return tmp_path / "net.py"


@pytest.mark.parametrize(
    ("spec", "parts"),
    [
        ("net.py:build", ("file", "net.py", "build")),
        ("a/b c/net.py:Net", ("file", "a/b c/net.py", "Net")),
        (r"C:\nets\net.py:build", ("file", r"C:\nets\net.py", "build")),
        ("package.module:factory", ("module", "package.module", "factory")),
        ("timm:resnet18.a1_in1k", ("timm", "resnet18.a1_in1k", "")),
        ("torchvision:resnet18", ("torchvision", "resnet18", "")),
        ("hf:/some/dir", ("hf", "/some/dir", "")),
    ],
)
def test_forms(spec: str, parts: tuple[str, str, str]) -> None:
    """Every form a user may write."""
    assert parse_spec(spec) == parts


def test_a_file_with_neighbours_leaves_no_trace(net: Path) -> None:
    """Its own module stays for its classes; directory, path, neighbours and generators are as before."""
    path, cwd, state, modules = list(sys.path), Path.cwd(), torch.get_rng_state(), set(sys.modules)
    model, origin = _with_origin(f"{net}:build")
    assert origin.kind == "file"
    assert origin.location == str(net.resolve())
    assert origin.initialization == "factory"
    assert (list(sys.path), Path.cwd()) == (path, cwd)
    assert torch.equal(state, torch.get_rng_state())
    assert set(sys.modules) - modules <= {type(model).__module__}
    assert sys.modules[type(model).__module__].RAN == [7]
    assert not list(net.parent.rglob("__pycache__"))
    exported = torch.export.export(model.eval(), (torch.ones(2, 3),), strict=False).module()
    torch.testing.assert_close(exported(torch.ones(2, 3)), model(torch.ones(2, 3)))


def test_random_weights_depend_on_the_seed(net: Path) -> None:
    """Loaded twice, the same network; with arguments, another."""
    first, second = (load_model(f"{net}:Net").linear.weight for _ in range(2))
    other = load_model(f"{net}:Net", seed=1).linear.weight
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert load_model(f"{net}:Net", width=9).linear.out_features == 9
    assert load_model(f"{net}:model").linear.out_features == 2


def test_relative_paths_are_seen_from_the_working_directory(net: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and modules alike."""
    monkeypatch.chdir(net.parent)
    assert _with_origin("net.py:Net")[1].location == str(net.resolve())
    model, origin = _with_origin("net:Net")
    assert origin.kind == "module"
    assert type(model).__module__ == "net"
    assert sys.path[0] != str(net.parent)
    for name in ("net", "layers_of_test"):
        sys.modules.pop(name, None)


def test_weights_are_put_in_and_named(net: Path, tmp_path: Path) -> None:
    """Also into a model that was built without memory."""
    source = load_model(f"{net}:Net", seed=5)
    torch.save({"state_dict": source.state_dict()}, tmp_path / "w.pt")
    for factory in ("Net", "on_meta"):
        model, origin = _with_origin(f"{net}:{factory}", tmp_path / "w.pt")
        assert torch.equal(model.linear.weight, source.linear.weight)
        assert (origin.initialization, origin.weights) == ("checkpoint", str(tmp_path / "w.pt"))


def test_zoo_networks_take_arguments_and_checkpoints(tmp_path: Path) -> None:
    """A state dict without counters, as public ResNet-20 files are."""
    source = build("resnet20", seed=3)
    state = {key: value for key, value in source.state_dict().items() if "num_batches" not in key}
    torch.save(state, tmp_path / "w.pth")
    model, origin = _with_origin("zoo:resnet20", tmp_path / "w.pth")
    assert all(torch.equal(model.state_dict()[key], value) for key, value in state.items())
    assert origin.initialization == "checkpoint"
    model, origin = _with_origin("zoo:relu10", norm="bn", width=8)
    assert isinstance(model.hidden[0][1], nn.BatchNorm1d)
    assert origin.initialization == "random"


def test_a_folder_of_training_runs_is_told_with_their_names(tmp_path: Path) -> None:
    """One of them is what `check` takes."""
    for name in ("a", "b"):
        (tmp_path / "runs" / name).mkdir(parents=True)
        (tmp_path / "runs" / name / "metrics.jsonl").touch()
    with pytest.raises(ModelNotFoundError, match=r"runs contains several runs\. Name one: .*runs/a, .*runs/b"):
        load_model(str(tmp_path / "runs"))


@pytest.mark.parametrize(
    ("spec", "error", "message"),
    [
        ("{dir}/none.py:build", ModelNotFoundError, r"File not found: .*none\.py"),
        ("{dir}/folder.py:build", ModelNotFoundError, "is a directory"),
        ("{dir}/net.py", ModelNotFoundError, r"Names there: Net, build, unused, model, broken, on_meta"),
        ("{dir}/net.py:", ModelNotFoundError, r"Names there: Net, build"),
        ("{dir}/net.py:bild", ModelNotFoundError, r"has no 'bild'\. Callables there: Net, broken, build"),
        ("{dir}/w.pt", ModelNotFoundError, "A checkpoint contains only weights"),
        ("{dir}/w.pt:build", ModelNotFoundError, "Expected FILE.py, a dotted module.*before the colon"),
        ("{dir}/hub", ModelNotFoundError, "Write hf:.*hub"),
        ("{dir}", ModelNotFoundError, "Name a Python file in that directory"),
        ("resnet20", ModelNotFoundError, "Write zoo:resnet20"),
        ("", ModelNotFoundError, "Expected a model as FILE.py:factory"),
        ("zoo:", ModelNotFoundError, "Expected a name after"),
        ("zoo:resnet21", ModelNotFoundError, "Did you mean resnet20"),
        ("no_such_package_x:f", ModelNotFoundError, "No module named 'no_such_package_x'"),
        ("os.path:join", FactoryError, "missing a required argument"),
        ("os:getcwd", FactoryError, "got str"),
        ("{dir}/net.py:unused", FactoryError, r"SystemExit: must not run at .*net\.py, line \d+"),
        ("{dir}/net.py:broken", NonFiniteError, r"linear\.bias has 4 infinite of 4"),
        ("{dir}/net.py:on_meta", WeightsError, r"linear\.weight, linear\.bias have no values"),
    ],
)
def test_mistakes(net: Path, spec: str, error: type[NormscopeError], message: str) -> None:
    """Each has its class and says what to do; the interpreter is as before."""
    folder = net.parent
    (folder / "folder.py").mkdir()
    (folder / "hub").mkdir()
    (folder / "hub" / "config.json").write_text("{}")
    (folder / "w.pt").write_bytes(b"x")
    before = list(sys.path), Path.cwd()
    with pytest.raises(error, match=message):
        load_model(spec.format(dir=folder))
    assert (list(sys.path), Path.cwd()) == before
    assert os.fspath(folder) not in sys.path


def test_no_line_of_the_file_runs_twice(net: Path, tmp_path: Path) -> None:
    """Loading runs the module once and the factory once."""
    counter = tmp_path / "count"
    net.write_text(
        "from torch import nn\n"
        "def mark(text):\n"
        f"    with open({str(counter)!r}, 'a') as file: file.write(text)\n"
        "mark('x')\n"
        "def build():\n"
        "    mark('y')\n"
        "    return nn.Linear(1, 1)\n"
    )
    load_model(f"{net}:build")
    assert counter.read_text() == "xy"


def test_arguments_of_a_factory_may_have_any_name(net: Path) -> None:
    """Also those of our own functions."""
    net.write_text(
        "from torch import nn\n"
        "def build(seed=0, weights=1, spec=2, name=3, arguments=4):\n"
        "    return nn.Linear(seed + weights, spec + name + arguments)\n"
    )
    names = {"seed": 10, "weights": 20, "spec": 30, "name": 40, "arguments": 50}
    model, origin = _with_origin(f"{net}:build", seed=7, arguments=names)
    assert (model.in_features, model.out_features, origin.seed) == (30, 120, 7)
    with pytest.raises(FactoryError, match=r"for relu10: name"):
        load_model("zoo:relu10", arguments={"name": "x"})


def test_neighbours_imported_late_are_found_while_the_home_is_open(net: Path) -> None:
    """In the forward pass; one that the factory imported before is the same module."""
    (net.parent / "layers_of_test.py").write_text("class Scale: ...\n")
    (net.parent / "lazy_of_test.py").write_text("from layers_of_test import Scale\n")
    net.write_text(
        "from torch import nn\n"
        "from layers_of_test import Scale\n"
        "class Net(nn.Linear):\n"
        "    def forward(self, x):\n"
        "        import lazy_of_test\n"
        "        assert lazy_of_test.Scale is Scale\n"
        "        return super().forward(x)\n"
        "def build(): return Net(3, 2)\n"
    )
    path, modules = list(sys.path), set(sys.modules)
    model, _, home = load_at_home(f"{net}:build", None, {}, 0)
    with home.open():
        assert model(torch.ones(1, 3)).shape == (1, 2)
    assert path == sys.path
    assert set(sys.modules) - modules <= {type(model).__module__}
    with pytest.raises(ModuleNotFoundError):
        model(torch.ones(1, 3))


def test_weights_are_found_at_home(net: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` is expanded, as it is for the model."""
    monkeypatch.setenv("HOME", str(tmp_path))
    torch.save(load_model(f"{net}:Net", seed=5).state_dict(), tmp_path / "w.pt")
    assert _with_origin("~/net.py:Net", "~/w.pt")[1].weights == "~/w.pt"
