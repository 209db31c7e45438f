"""Keys of models: equal only where the graph is equal, and none where that cannot be told."""

from __future__ import annotations

import functools
import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrizations

from normscope.graph.identity import model_key

X = (torch.zeros(2, 3),)


class Settings(nn.Module):
    """A model with attributes of many kinds."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        for name, value in attributes.items():
            setattr(self, name, value)

    def forward(self, x: Tensor) -> Tensor:
        """Run the model."""
        return self.linear(x)


def _scaled(factor: float) -> Callable[[Tensor], Tensor]:
    return lambda x: x * factor


CHANGES: dict[str, tuple[Callable[[], nn.Module], Callable[[], nn.Module]]] = {
    "number": (lambda: Settings(a=1), lambda: Settings(a=2)),
    "type of number": (lambda: Settings(a=1), lambda: Settings(a=True)),
    "float": (lambda: Settings(a=0.1), lambda: Settings(a=0.1 + 1e-16)),
    "nested": (lambda: Settings(a={"b": [1, (2,)]}), lambda: Settings(a={"b": [1, (3,)]})),
    "object": (lambda: Settings(a=SimpleNamespace(b=1)), lambda: Settings(a=SimpleNamespace(b=2))),
    "tensor that is not state": (lambda: Settings(a=torch.zeros(2)), lambda: Settings(a=torch.ones(2))),
    "closure": (lambda: Settings(a=_scaled(1.0)), lambda: Settings(a=_scaled(2.0))),
    "function": (lambda: Settings(a=lambda x: x + 1), lambda: Settings(a=lambda x: x + 2)),
    "partial": (lambda: Settings(a=functools.partial(max, 1)), lambda: Settings(a=functools.partial(max, 2))),
    "torch function": (lambda: Settings(a=torch.relu), lambda: Settings(a=torch.tanh)),
    "mode": (lambda: Settings(), lambda: Settings().eval()),
    "shape": (lambda: nn.Linear(3, 4), lambda: nn.Linear(3, 5)),
    "dtype": (lambda: nn.Linear(3, 4), lambda: nn.Linear(3, 4).double()),
    "eps": (lambda: nn.LayerNorm(3), lambda: nn.LayerNorm(3, eps=1e-6)),
    "class": (lambda: nn.Sequential(nn.ReLU()), lambda: nn.Sequential(nn.Tanh())),
    "order": (lambda: nn.Sequential(nn.ReLU(), nn.Tanh()), lambda: nn.Sequential(nn.Tanh(), nn.ReLU())),
    "parametrization": (lambda: nn.Linear(3, 3), lambda: parametrizations.spectral_norm(nn.Linear(3, 3))),
    "hidden module": (lambda: Settings(a=[nn.ReLU()]), lambda: Settings(a=[nn.Tanh()])),
    "tied": (lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), lambda: nn.Sequential(*[nn.Linear(3, 3)] * 2)),
}


@pytest.mark.parametrize(("one", "other"), CHANGES.values(), ids=CHANGES.keys())
def test_what_differs_has_another_key(one: Callable[[], nn.Module], other: Callable[[], nn.Module]) -> None:
    """And what is built again in the same way has the same."""
    first = model_key(one(), X)
    assert first is not None
    assert first == model_key(one(), X)
    assert model_key(other(), X) not in (None, first)


def test_weights_do_not_count_and_inputs_count_by_shape() -> None:
    """Weights do not count and inputs count by shape."""
    model = nn.Linear(3, 2)
    key = model_key(model, X)
    nn.init.zeros_(model.weight)
    assert model_key(model, (torch.ones(2, 3),)) == key
    assert model_key(model, (torch.zeros(4, 3),)) != key
    assert model_key(model, (torch.zeros(2, 3, dtype=torch.float64),)) != key
    assert model_key(model, X, dynamic=True) != key


def test_hooks_count_but_not_their_numbers() -> None:
    """Hooks count but not their numbers."""

    def hook(module: nn.Module, args: Any) -> None:
        return None

    plain, first, second = nn.Linear(3, 2), nn.Linear(3, 2), nn.Linear(3, 2)
    first.register_forward_pre_hook(hook)
    second.register_forward_pre_hook(hook)
    assert model_key(first, X) == model_key(second, X) != model_key(plain, X)


def test_a_forward_put_in_from_elsewhere_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A forward put in from elsewhere counts."""
    own, known = Settings(), nn.Linear(3, 2)
    keys = model_key(own, X), model_key(known, X)
    monkeypatch.setattr(Settings, "forward", lambda self, x: self.linear(x) * 2)
    monkeypatch.setattr(nn.Linear, "forward", lambda self, x: x)
    assert model_key(own, X) not in (None, keys[0])
    assert model_key(known, X) not in (None, keys[1])


@pytest.mark.parametrize("model", [nn.LSTM(3, 2), nn.TransformerEncoderLayer(4, 2), nn.MultiheadAttention(4, 2)])
def test_common_modules_have_a_key(model: nn.Module) -> None:
    """Common modules have a key."""
    assert model_key(model, X) is not None


def test_what_cannot_be_described_has_no_key() -> None:
    """What cannot be described has no key."""
    assert model_key(Settings(a=(i for i in range(3))), X) is None
    assert model_key(Settings(a=torch.Generator()), X) is None
    endless: list[Any] = []
    endless.append(endless)
    assert model_key(Settings(a=endless), X) is None
    scope: dict[str, Any] = {"nn": nn, "__name__": "notebook"}
    exec("class Cell(nn.Module):\n    def forward(self, x):\n        return x\n", scope)
    assert model_key(scope["Cell"](), X) is None
    assert model_key(Settings(a=eval("lambda x: x")), X) is None


def _import(path: Path) -> ModuleType:
    """Import a file without leaving it in ``sys.modules``, as a loader of user code may do."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_functions_in_other_files_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A change in a function the forward calls changes the key, even of modules nobody can see any more."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "neighbour_of_net.py").write_text("SCALE = 1\ndef act(x):\n    return x * SCALE\n")
    (tmp_path / "net.py").write_text(
        "from torch import nn\nimport neighbour_of_net\n"
        "class Net(nn.Module):\n    def forward(self, x):\n        return neighbour_of_net.act(x)\n"
    )

    def key() -> str | None:
        net = _import(tmp_path / "net.py").Net()
        sys.modules.pop("neighbour_of_net")
        return model_key(net, X)

    first = key()
    assert first is not None
    assert key() == first
    (tmp_path / "neighbour_of_net.py").write_text("SCALE = 1\ndef act(x):\n    return x + SCALE\n")
    assert key() not in (None, first)


def test_keys_are_the_same_in_every_process(tmp_path: Path) -> None:
    """The order of sets and the addresses of objects must not get in."""
    script = tmp_path / "net.py"
    script.write_text(
        "import torch\nfrom torch import nn\nfrom normscope.graph.identity import model_key\n"
        "class Net(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.a = {'x', 'y', 'z'}\n"
        "    def forward(self, x):\n        return x if x.ndim in {1, 2, 3} and 'q' in {'p', 'q', 'r'} else -x\n"
        "print(model_key(nn.Sequential(Net(), nn.LSTM(2, 3)), torch.zeros(2)))\n"
    )
    runs = {
        subprocess.run(
            [sys.executable, str(script)], capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(runs) == 1
    assert "None" not in runs.pop()


READ = {
    "a variable around the class": "def make(g):\n    class N(nn.Module):\n"
    "        def forward(self, x): return g * x\n    return N()\n",
    "a default of a method": "def make(g):\n    class N(nn.Module):\n"
    "        def forward(self, x, k=g): return k * x\n    return N()\n",
    "a global dictionary": "C = {}\nclass N(nn.Module):\n    def forward(self, x): return C['g'] * x\n"
    "def make(g):\n    C['g'] = g\n    return N()\n",
    "a global list": "C = [0]\nclass N(nn.Module):\n    def forward(self, x): return C[0] * x\n"
    "def make(g):\n    C[0] = g\n    return N()\n",
    "a global tensor": "T = torch.zeros(1)\nclass N(nn.Module):\n    def forward(self, x): return T * x\n"
    "def make(g):\n    T.fill_(g)\n    return N()\n",
    "a global object": "import types\nS = types.SimpleNamespace(g=0)\n"
    "class N(nn.Module):\n    def forward(self, x): return S.g * x\n"
    "def make(g):\n    S.g = g\n    return N()\n",
    "a table of the class": "class N(nn.Module):\n    table = ()\n    def forward(self, x): return self.table[0] * x\n"
    "def make(g):\n    N.table = (g,)\n    return N()\n",
    "the environment": "import os\nclass N(nn.Module):\n"
    "    def forward(self, x): return float(os.environ['GAIN_OF_NET']) * x\n"
    "def make(g):\n    os.environ['GAIN_OF_NET'] = str(g)\n    return N()\n",
}


@pytest.mark.parametrize("name", READ)
def test_what_a_forward_reads_besides_its_arguments_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Two models of one code are two if a variable they read is another, and one if it is the same."""
    monkeypatch.setenv("GAIN_OF_NET", "0")
    (tmp_path / "net.py").write_text(
        f"import logging\nimport torch\nfrom torch import nn\nlog = logging.getLogger()\n{READ[name]}"
    )
    module = _import(tmp_path / "net.py")
    first, other, again = (model_key(module.make(gain), X) for gain in (5.0, 500.0, 5.0))
    assert first is not None
    assert other is not None
    assert first == again
    assert first != other
