"""Loading what a user names: the model, its data, and the shape where there are none."""

from __future__ import annotations

import json
import sys
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from normscope.cli.loading import Named, load, split_arguments
from normscope.core.errors import ModelNotFoundError

Run = Callable[..., Any]
MLP = "zoo:mlp[in_features=64,hidden=[4]]"


@pytest.fixture
def here(run: Run) -> Path:
    """Return the working directory, with a model and data."""
    Path("net.py").write_text("from torch import nn\ndef good(): return nn.Linear(4, 2)\n")
    np.save("some.npy", np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32))
    return Path.cwd()


def _named(model: str, data: str | None = None, shape: tuple[int, ...] | None = None) -> Named:
    return Named(model, None, data, None, "test", 5, None, shape)


@pytest.mark.parametrize(("model", "threads"), [(MLP, 1), ("zoo:resnet18", 3)])
def test_small_networks_take_one_thread(model: str, threads: int) -> None:
    """More would only wait for each other; large ones keep what torch has."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        load(_named(model), 0, lambda _: None)
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_a_network_of_the_zoo_knows_its_shape() -> None:
    """Unless one is named, or there are data."""
    said: list[str] = []
    loaded = load(_named(MLP), 0, said.append)
    assert loaded.shape == (1, 8, 8)
    assert loaded.inputs is None
    assert said == ["loading the model"]
    assert load(_named(MLP, shape=(64,)), 0, said.append).shape == (64,)


def test_data_are_iterated_as_often_as_wanted_without_labels() -> None:
    """As many as asked for."""
    said: list[str] = []
    loaded = load(_named(MLP, "digits"), 0, said.append)
    assert loaded.inputs is not None
    assert [len(batch) for _ in range(2) for batch in loaded.inputs] == [5, 5]
    assert loaded.shape is None
    assert said[-1] == "loading the data"


def test_what_is_not_there_is_told() -> None:
    """By the loader of models."""
    with pytest.raises(ModelNotFoundError):
        load(_named("zoo:nothing"), 0, lambda text: None)


def test_onnx_files_are_not_read() -> None:
    """And what to name instead is said."""
    named = Named("nets/x.ONNX", None, None, None, "test", None, None, None)
    with pytest.raises(ModelNotFoundError, match=r"ONNX files are not supported: nets/x.ONNX. Pass the PyTorch model"):
        load(named, 0, lambda text: None)


def test_neighbours_imported_by_the_forward_pass(run: Run, here: Path) -> None:
    """They are found by every verb that runs the model, and forgotten afterwards."""
    (here / "u").mkdir()
    (here / "u" / "helper_of_test.py").write_text("def act(x): return x.relu()\n")
    (here / "u" / "lazy.py").write_text(
        "from torch import nn\n"
        "class Net(nn.Module):\n"
        "    def __init__(self): super().__init__(); self.fc = nn.Linear(4, 2)\n"
        "    def forward(self, x):\n"
        "        from helper_of_test import act\n"
        "        return act(self.fc(x))\n"
        "def optimizer(model):\n"
        "    from torch.optim import SGD\n"
        "    return SGD(model.parameters(), lr=0.1)\n"
    )
    model = ["u/lazy.py:Net", "--input", "4"]
    path = list(sys.path)
    for verb in (
        ["analyze", *model, "--no-report", "--ascent", 0, "-q"],
        ["weights", *model, "-q"],
        ["fix", *model, "--dry-run"],
        ["check", *model, "--fail-on", "never", "--format", "html", "--optimizer", "u/lazy.py:optimizer", "-q"],
    ):
        result = run(*verb)
        assert result.exit_code == 0, (verb, result.output)
    assert "helper_of_test" not in sys.modules
    assert path == sys.path


def test_the_users_code_does_not_see_our_options(run: Run, here: Path) -> None:
    """A script that parses its arguments when it is imported gets none."""
    (here / "script.py").write_text(
        "import argparse\n"
        "from torch import nn\n"
        "parser = argparse.ArgumentParser()\n"
        "parser.add_argument('--limit', type=int, default=3)\n"
        "given = parser.parse_args()\n"
        "def build(): return nn.Linear(4, given.limit)\n"
    )
    result = run("analyze", "script.py:build", "--data", "some.npy", "--limit", 7, "--json")
    assert result.exit_code == 0, result.stderr
    assert json.loads(result.stdout)["layers"][0]["shape"] == [3, 4]


def test_a_strict_script_is_strict_with_itself_alone(run: Run, here: Path) -> None:
    """Its filters of warnings and its way with numpy's errors are not ours."""
    (here / "strict.py").write_text(
        "import warnings\n"
        "import numpy as np\n"
        "from torch import nn\n"
        "warnings.simplefilter('error')\n"
        "np.seterr(all='raise')\n"
        "def build(): return nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))\n"
    )
    filters, errors = list(warnings.filters), np.geterr()
    result = run("analyze", "strict.py:build", "--input", 4, "-q")
    assert result.exit_code == 0, result.stderr
    assert (filters, errors) == (list(warnings.filters), np.geterr())


@pytest.mark.parametrize(
    ("text", "spec", "arguments"),
    [
        ("zoo:cnn", "zoo:cnn", {}),
        ("zoo:cnn[]", "zoo:cnn", {}),
        ("zoo:cnn[norm=ln]", "zoo:cnn", {"norm": "ln"}),
        (
            "a.b:c[x=1, y=-2.5, z='w', flag=True, none=None]",
            "a.b:c",
            {"x": 1, "y": -2.5, "z": "w", "flag": True, "none": None},
        ),
        ("net.py:f[hidden=(3, 4), table={'a': 1}]", "net.py:f", {"hidden": (3, 4), "table": {"a": 1}}),
        ("hf:dir[1]/model", "hf:dir[1]/model", {}),
        ("run[1]/net.py:build[width=5]", "run[1]/net.py:build", {"width": 5}),
        ("run[a=1]/net.py:f[x=[1, 2], y='a]b[c']", "run[a=1]/net.py:f", {"x": [1, 2], "y": "a]b[c"}),
        ("[1]/net.py:f[]", "[1]/net.py:f", {}),
    ],
)
def test_arguments(text: str, spec: str, arguments: dict[str, object]) -> None:
    """Literals and bare words are read."""
    assert split_arguments(text) == (spec, arguments)


@pytest.mark.parametrize(
    "inside",
    ["3", "x=", "x=f(1)", "x=__import__('os')", "**{}", "x=1)(", "a.b=1", "x={[1]: 2}", "x=1,x=2", "x=" + "(" * 999],
)
def test_what_is_no_argument(inside: str) -> None:
    """Anything else is refused, and never evaluated."""
    with pytest.raises(ModelNotFoundError, match="name=value"):
        split_arguments(f"zoo:cnn[{inside}]")
