"""Import a user's file or module, find the factory in it and call it, leaving the interpreter as it was."""

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from operator import attrgetter
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
from torch import nn

from normscope.core.environment import flags, restore_flags
from normscope.core.errors import FactoryError, ModelNotFoundError, listed
from normscope.core.files import user_path
from normscope.zoo.randomness import seeded


class Home:
    """Where a user's code lives: while it is open its neighbours can be imported, afterwards nothing is left of it.

    It may be opened again: the neighbours imported before are then available unchanged, and none is run twice.

    Args:
        folder: what the code imports from.
        location: the absolute path of a file, or the dotted name of a module. While the home is open it is all that
            ``sys.argv`` holds, so that the code does not see the options of another program.
        is_file: whether it is a file. Modules imported from its folder are then dropped from ``sys.modules`` when the
            home is closed, so that the next model may have neighbours of the same names.
    """

    def __init__(self, folder: Path, location: str, *, is_file: bool) -> None:
        self.location = location
        self._folder, self._is_file = folder, is_file
        self._neighbours: dict[str, ModuleType] = {}

    def module(self) -> ModuleType:
        """Run the file, or import the module; see :func:`import_file` and :func:`import_module`."""
        return import_file(Path(self.location)) if self._is_file else import_module(self.location)

    @contextmanager
    def open(self) -> Iterator[None]:
        """Let code import from the folder inside the block; no bytecode is written, and libraries stay imported."""
        path, argv, bytecode = list(sys.path), sys.argv, sys.dont_write_bytecode
        modules = dict(sys.modules)
        sys.modules.update(self._neighbours)
        sys.path.insert(0, str(self._folder))
        sys.argv = [self.location]
        sys.dont_write_bytecode = True
        importlib.invalidate_caches()
        try:
            yield
        finally:
            sys.path[:] = path
            sys.argv = argv
            sys.dont_write_bytecode = bytecode
            if self._is_file:
                self._forget_neighbours(modules)

    def _forget_neighbours(self, before: Mapping[str, ModuleType]) -> None:
        """Take the neighbours out of ``sys.modules``, and keep them for the next time."""
        for name, module in list(sys.modules.items()):
            if before.get(name) is not module and _is_neighbour(name, module, self._folder):
                self._neighbours[name] = sys.modules.pop(name)
                if name in before:
                    sys.modules[name] = before[name]


def home_of(kind: str, location: str) -> Home:
    """Return where the code that a user named lives.

    >>> home_of("module", "torch.nn").module() is nn
    True
    """
    if kind != "file":
        return Home(Path.cwd(), location, is_file=False)
    file = user_path(location)
    if file.is_dir():
        raise ModelNotFoundError(f"Expected a Python file, but {file} is a directory.")
    if not file.is_file():
        raise ModelNotFoundError(f"File not found: {file} (in {Path.cwd()}).")
    file = file.resolve()
    return Home(file.parent, str(file), is_file=True)


@contextmanager
def undisturbed(home: Home, seed: int) -> Iterator[None]:
    """Let code run at its home inside the block, and undo what it does to the interpreter.

    Restored are ``sys.path``, ``sys.argv``, the working directory, the filters of warnings, numpy's handling of errors,
    torch's global settings and the random generators.
    """
    folder, settings = Path.cwd(), flags()
    try:
        with home.open(), warnings.catch_warnings(), np.errstate(), seeded(seed):
            yield
    finally:
        os.chdir(folder)
        restore_flags(settings)


def _is_neighbour(name: str, module: ModuleType, folder: Path) -> bool:
    """Return whether the module was found by ``folder`` being on the path, and not by some library folder below it."""
    attributes = getattr(module, "__dict__", {})  # asking the module itself may run code of its own
    origin = attributes.get("__file__")
    for place in [origin] if origin else list(attributes.get("__path__", ())):
        with suppress(ValueError, TypeError, OSError):
            inside = Path(place).resolve().relative_to(folder)
            if inside.parts and inside.parts[0].partition(".")[0] == name.partition(".")[0]:
                return True
    return False


def explained(error: BaseException, what: str, file: str | None) -> FactoryError:
    """Return the error that shows a user's own exception: its type, message and line.

    Args:
        error: what their code raised.
        what: the action that failed, e.g. ``"importing net.py"``.
        file: their file, whose last line in the traceback is shown; None for the line that raised, empty for no line
            at all.

    >>> str(explained(ValueError("no"), "Calling f", None))
    'Calling f failed with ValueError: no. Run it in Python alone to debug it.'
    """
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if file is not None and frame.filename == file]
    where = ""
    if isinstance(error, SyntaxError) and error.lineno is not None:
        where = f" at {error.filename}, line {error.lineno}"
    elif own or (frames and file is None):
        frame = (own or list(frames))[-1]
        where = f" at {frame.filename}, line {frame.lineno}" + (f" ({frame.line})" if frame.line else "")
    message = error.msg if isinstance(error, SyntaxError) else str(error)
    hint = "Run it in Python alone to debug it."
    if isinstance(error, ImportError) and "relative import" in message:
        hint = "Name the model by its package instead: package.module:factory."
    elif isinstance(error, ModuleNotFoundError):
        hint = f"Install {error.name} or put it next to the file."
    raised = f"{type(error).__name__}: {message}".rstrip(": ")
    return FactoryError(f"{what} failed with {raised}{where}. {hint}")


def callables_in_source(file: Path) -> list[str]:
    r"""Return the public functions, classes and models at the top of a file, without running it.

    What is made by calling a capitalized name, as in ``model = Net()``, may be a model.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = (Path(folder) / "net.py").write_text("def build(): ...\nclass Net: ...\nmodel = Net()\n_hidden = 1")
    ...     callables_in_source(Path(folder) / "net.py")
    ['build', 'Net', 'model']
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError, RecursionError):
        return []
    names: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.append(node.name)
        elif isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            made_by = ast.unparse(node.value.func).rpartition(".")[2]
            names += [target.id for target in node.targets if isinstance(target, ast.Name) and made_by[:1].isupper()]
    return [name for name in names if not name.startswith("_")]


def callables_of(module: ModuleType) -> list[str]:
    """Return the public functions, classes and models of a module, those it defines itself first."""
    found = [
        (getattr(value, "__module__", None) != module.__name__, name)
        for name, value in vars(module).items()
        if callable(value) and not name.startswith("_")
    ]
    return [name for _, name in sorted(found)]


def import_file(file: Path) -> ModuleType:
    """Run a Python file as a module of its own; the module stays in ``sys.modules`` for its classes."""
    # Two files may have one name: the path makes the module's name unique. Neither need be valid text.
    digest = hashlib.sha256(os.fsencode(file)).hexdigest()[:8]
    stem = re.sub(r"\W", "_", file.stem)
    name = f"normscope_user_{stem}_{digest}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise ModelNotFoundError(f"Expected a .py file, got {file}.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[name]
        raise explained(error, f"Importing {file.name}", str(file)) from error
    return module


def import_module(name: str) -> ModuleType:
    """Import a module by its dotted name."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise ModelNotFoundError(
                f"No module named {missing!r} on the path or in {Path.cwd()}. "
                "Install it, or name a file: FILE.py:factory."
            ) from error
        raise explained(error, f"Importing {name}", None) from error
    except (Exception, SystemExit) as error:
        raise explained(error, f"Importing {name}", None) from error


def find_factory(module: ModuleType, attribute: str, where: str) -> Any:
    """Return ``module.attribute``, a callable or a model."""
    choices = listed(callables_of(module)) or "none"
    try:
        found = attrgetter(attribute)(module)
    except AttributeError:
        raise ModelNotFoundError(f"{where} has no {attribute!r}. Callables there: {choices}.") from None
    except Exception as error:  # a module may define ``__getattr__``
        raise explained(error, f"Looking up {attribute} in {where}", None) from error
    if not callable(found):
        raise ModelNotFoundError(
            f"Expected {where}:{attribute} to be a model, or a function or class that returns one, got "
            f"{type(found).__name__}. Callables there: {choices}."
        )
    return found


def call_factory(factory: Callable[..., Any], name: str, arguments: Mapping[str, Any], file: str | None) -> nn.Module:
    """Call a factory and return its model; a model given in place of a factory is returned as it is.

    >>> call_factory(nn.Linear, "nn.Linear", {"in_features": 2, "out_features": 1}, None)
    Linear(in_features=2, out_features=1, bias=True)
    """
    if isinstance(factory, nn.Module):
        if arguments:
            raise FactoryError(f"{name} is already a model and takes no arguments, got {listed(sorted(arguments))}.")
        return _constructed(factory, name)
    try:
        inspect.signature(factory).bind(**arguments)
    except TypeError as error:
        raise FactoryError(
            f"Cannot call {name} with {listed(sorted(arguments)) or 'no arguments'}: {error}. "
            "Give its arguments defaults, or write a function without arguments that calls it."
        ) from None
    except ValueError:
        pass  # no signature to check beforehand: the call itself raises
    try:
        model = factory(**arguments)
    except (Exception, SystemExit) as error:
        raise explained(error, f"Calling {name}", file) from error
    if not isinstance(model, nn.Module):
        got = f"the class {model.__name__} itself" if isinstance(model, type) else type(model).__name__
        raise FactoryError(f"Expected {name} to return a torch.nn.Module, got {got}.")
    return _constructed(model, name)


def _constructed(model: nn.Module, name: str) -> nn.Module:
    """Return a model if the constructor of ``nn.Module`` ran for every part of it."""
    try:
        for _ in model.named_parameters():
            pass
    except AttributeError as error:
        raise FactoryError(f"A module of {name} does not call super().__init__() first: {error}") from None
    return model
