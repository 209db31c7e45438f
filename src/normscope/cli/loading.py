"""The first steps of every verb about a model: load the named model and its data."""

from __future__ import annotations

import ast
import contextlib
import importlib
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from normscope.core.errors import ModelNotFoundError
from normscope.core.numbers import parse_shape

if TYPE_CHECKING:
    from torch import Tensor, nn

    from normscope.zoo.data.source import Data
    from normscope.zoo.load import ModelOrigin
    from normscope.zoo.user_code import Home

Made = TypeVar("Made")


@dataclass(frozen=True)
class Named:
    """A model and data as a user names them."""

    model: str  #: the model's specification, arguments included
    weights: Path | None  #: a state dict for it
    data: str | None  #: name or file of the data
    root: Path | None  #: where named data lies
    split: str  #: of named data
    limit: int | None  #: how many samples
    normalize: str | None  #: preset that brings stored numbers to the network's units
    shape: str | None  #: of one input, without batch axis, such as ``3,224,224``

    @property
    def typed(self) -> str:
        """Return what to type after the model's name, so that another verb sees it with the same weights and shape.

        >>> Named("net.py:build", Path("w.pt"), "digits", None, "test", None, None, "1,8,8").typed
        '--weights w.pt --input 1,8,8'
        """
        words = [] if self.weights is None else ["--weights", str(self.weights)]
        if self.shape is not None:
            words += ["--input", self.shape]
        elif self.data is not None:
            words += ["--data", self.data]
        return shlex.join(words)


@dataclass(frozen=True)
class Inputs:
    """The inputs of a data set without its labels, to be iterated as often as wanted."""

    data: Data

    def __iter__(self) -> Iterator[Tensor]:
        return self.data.inputs()


@dataclass(frozen=True)
class Loaded:
    """A model and data that were loaded."""

    named: Named  #: what a user called them
    model: nn.Module  #: the network
    origin: ModelOrigin  #: where it comes from
    data: Data | None  #: its data, if some were named
    shape: tuple[int, ...] | None  #: of one input: as named, or as a network of the zoo says
    home: Home  #: where its code lives; must be open while the model runs
    progress: Callable[[str], None]  #: called with a line of text at each step

    @property
    def inputs(self) -> Inputs | None:
        """Return the inputs of the data."""
        return None if self.data is None else Inputs(self.data)

    def call(self, twin: Callable[..., Made], data: Any = None, **options: Any) -> Made:
        """Call the Python twin of a verb with the model, its inputs or the given data, and what every twin takes."""
        common = {"input_shape": self.shape, "name": self.named.model, "progress": self.progress}
        with self.home.open():
            return twin(self.model, self.inputs if data is None else data, **common, **options)


def split_arguments(text: str) -> tuple[str, dict[str, Any]]:
    """Return a model specification and the arguments in brackets after it.

    Args:
        text: e.g. ``zoo:resnet18[norm=ln, classes=10]``; values are Python literals or bare words. Brackets before the
            last ones belong to a path.

    >>> split_arguments("zoo:relu10[norm=ln,width=32]")
    ('zoo:relu10', {'norm': 'ln', 'width': 32})
    >>> split_arguments("run[1]/net.py:build[hidden=[3, 4]]")
    ('run[1]/net.py:build', {'hidden': [3, 4]})
    """
    if not text.endswith("]") or "[" not in text:
        return text, {}
    for at, character in enumerate(text):
        arguments = _arguments(text[at + 1 : -1]) if character == "[" else None
        if arguments is not None:
            return text[:at], arguments
    raise ModelNotFoundError(
        f"Expected name=value pairs in brackets, got {text}. Write e.g. 'zoo:resnet18[norm=ln,classes=10]'."
    )


def _arguments(inside: str) -> dict[str, Any] | None:
    """Return the arguments in a text between brackets, or ``None`` if there are none in it."""
    try:
        call = ast.parse(f"f({inside})", mode="eval").body
        if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Name) or call.args:
            return None
        given = {str(k.arg): k.value for k in call.keywords if k.arg is not None}
        # a bare word stands for itself
        arguments = {name: v.id if isinstance(v, ast.Name) else ast.literal_eval(v) for name, v in given.items()}
    except (SyntaxError, ValueError, TypeError, RecursionError, MemoryError):  # the last two: nested too deeply
        return None
    return arguments if len(arguments) == len(call.keywords) else None


@contextlib.contextmanager
def user_function(spec: str, seed: int) -> Iterator[Callable[..., Any]]:
    """Yield the function that ``FILE.py:function`` or ``package.module:function`` names, and undo its side effects."""
    from normscope.zoo.load import parse_spec
    from normscope.zoo.user_code import find_factory, home_of, undisturbed

    kind, location, name = parse_spec(spec)
    if kind not in ("file", "module"):
        raise ModelNotFoundError(f"Expected FILE.py:function or package.module:function, got {spec!r}.")
    home = home_of(kind, location)
    with undisturbed(home, seed):
        yield find_factory(home.module(), name, location)


def load(named: Named, seed: int, progress: Callable[[str], None], *, derivatives: bool = True) -> Loaded:
    """Load what a user names; the seed is that of weights that are not loaded.

    Torch takes a second to load its compiler when ``torch.export`` or ``torch.func`` are first used: it is loaded here,
    unless no ``derivatives`` are taken and a small model need not be exported.
    """
    from normscope.core.environment import few_threads
    from normscope.core.lazy import same_process
    from normscope.zoo.data.load import load_data
    from normscope.zoo.load import load_at_home

    spec, arguments = split_arguments(named.model)
    if spec.lower().endswith(".onnx"):
        raise ModelNotFoundError(
            f"ONNX files are not supported: {spec}. Pass the PyTorch model it was exported from "
            "(FILE.py:factory, zoo:NAME, hf:DIR, ...) or its weights (.safetensors, .pt)."
        )
    shape = None if named.shape is None else parse_shape(named.shape)
    if derivatives:
        with same_process():
            importlib.import_module("torch._dynamo")
    progress("loading the model")
    model, origin, home = load_at_home(spec, named.weights, arguments, seed)
    few_threads(model)
    data = None
    if named.data is not None:
        progress("loading the data")
        data = load_data(named.data, named.root, named.split, named.limit, normalize=named.normalize)
    elif shape is None and origin.kind == "zoo":
        shape = tuple(getattr(model, "input_shape", ())) or None
    return Loaded(named, model, origin, data, shape, home, progress)
