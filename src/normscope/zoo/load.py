"""From what a user writes to a model: files, modules, the zoo, and models of other libraries."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from normscope.core.errors import ModelNotFoundError, listed
from normscope.core.files import user_path
from normscope.graph.safe_load import CHECKPOINT, holds_tensors
from normscope.graph.weights_validation import check_model
from normscope.zoo import catalogue as zoo
from normscope.zoo.hub import timm_model, torchvision_model, transformers_model
from normscope.zoo.randomness import seeded
from normscope.zoo.state_dict import load_weights
from normscope.zoo.user_code import Home, call_factory, callables_in_source, find_factory, home_of, undisturbed

FORMS = "FILE.py:factory, package.module:factory, zoo:NAME, hf:DIR, timm:NAME or torchvision:NAME"
_LIBRARIES = ("zoo", "hf", "timm", "torchvision")


@dataclass(frozen=True)
class ModelOrigin:
    """Where a model came from."""

    spec: str  #: what the user wrote
    kind: str  #: ``"file"``, ``"module"``, ``"zoo"``, ``"hf"``, ``"timm"`` or ``"torchvision"``
    location: str  #: the file, module, directory or name
    factory: str = ""  #: the function that built it, empty for the last four kinds
    #: ``"random"`` (from ``seed``), ``"checkpoint"``, or ``"factory"`` (whatever the user's code did)
    initialization: str = "random"
    seed: int = 0  #: the random seed while it was built
    weights: str | None = None  #: the file its weights were read from
    notes: tuple[str, ...] = ()  #: remarks for the user


def parse_spec(spec: str) -> tuple[str, str, str]:
    """Return kind, location and factory of a model specification.

    >>> parse_spec("nets/small.py:build")
    ('file', 'nets/small.py', 'build')
    >>> parse_spec("zoo:relu10")
    ('zoo', 'relu10', '')
    """
    kind, colon, rest = spec.partition(":")
    if colon and kind in _LIBRARIES:
        if not rest:
            raise ModelNotFoundError(f"Expected a name after {kind}:, got {spec!r}. Write e.g. zoo:relu10.")
        return kind, rest, ""
    location, colon, factory = spec.rpartition(":")
    if not colon or not location or not factory or "/" in factory or "\\" in factory:
        raise ModelNotFoundError(f"Expected a model as {FORMS}; got {spec!r}. {_guess(spec.rstrip(':'))}")
    if location.endswith(".py"):
        return "file", location, factory
    if "/" in location or "\\" in location or not all(part.isidentifier() for part in location.split(".")):
        raise ModelNotFoundError(
            f"Expected FILE.py, a dotted module, or one of {', '.join(_LIBRARIES)} before the colon, "
            f"got {spec!r}. {_guess(location)}"
        )
    return "module", location, factory


def _guess(text: str) -> str:
    """Return what the user may have meant by a specification that has no known form."""
    path = user_path(text)
    if path.suffix == ".py" and path.is_file():
        names = listed(callables_in_source(path)) or "none"
        return f"Write {text}:NAME with a model, or a function or class that returns one. Names there: {names}."
    if path.suffix.lower() in CHECKPOINT.endings or (path.is_file() and holds_tensors(path)):
        return "A checkpoint contains only weights: name the model, and pass this file with --weights."
    if runs := sorted(str(file.parent) for file in path.glob("*/metrics.jsonl")):
        return f"{path} contains {'several runs' if len(runs) > 1 else 'a run'}. Name one: {listed(runs)}."
    if path.is_dir():
        return f"Write hf:{text}." if (path / "config.json").is_file() else "Name a Python file in that directory."
    if text in zoo.ZOO:
        return f"Write zoo:{text}."
    return "That file is neither Python code nor a checkpoint." if path.is_file() else "Check the spelling."


def load_model(
    spec: str,
    weights: str | Path | None = None,
    *,
    seed: int = 0,
    arguments: Mapping[str, Any] | None = None,
    **kwargs: Any,
) -> nn.Module:
    """Build a model from its specification and check that its weights are numbers.

    Randomness depends only on ``seed``; global generators, ``sys.path`` and the working directory are left as
    before. Nothing is downloaded, and of the user's code only the module and its factory run.

    Args:
        spec: ``FILE.py:factory``, ``package.module:factory``, ``zoo:NAME``, ``hf:DIR``, ``timm:NAME`` or
            ``torchvision:NAME``.
        weights: a file with a state dict for it.
        seed: random seed of the weights.
        arguments: of the factory, by name.
        **kwargs: more of them.

    Returns:
        The model, in the mode it was built in.

    Raises:
        ModelNotFoundError: if the specification names nothing.
        FactoryError: if building it fails.
        WeightsError: if the weights cannot be read safely, do not fit, are complex, or have no values.
        InputError: if a path cannot be accessed, or the seed has more than 64 bits.
        MissingDependencyError: if a library is needed.
        NonFiniteError: if a weight is NaN or infinite.

    >>> load_model("zoo:relu10", width=8, in_features=64).input_shape
    (1, 8, 8)
    """
    return load_at_home(spec, weights, {**(arguments or {}), **kwargs}, seed)[0]


def load_at_home(
    spec: str, weights: str | Path | None, arguments: Mapping[str, Any], seed: int
) -> tuple[nn.Module, ModelOrigin, Home]:
    """Build a model as :func:`load_model` does, and return its home with it.

    Code that imports its neighbours only when the model runs needs its home to be open by then.

    >>> model, _, home = load_at_home("zoo:relu10", None, {"width": 8, "in_features": 64}, 0)
    >>> with home.open():
    ...     model.input_shape
    (1, 8, 8)
    """
    kind, location, factory = parse_spec(spec)
    origin = ModelOrigin(spec, kind, location, factory, seed=seed)
    if kind in ("file", "module"):
        home = home_of(kind, location)
        model, origin = _from_user(origin, arguments, home)
    else:
        home = Home(Path.cwd(), spec, is_file=False)
        model, origin = _from_library(origin, arguments)
    with home.open():
        if weights is not None:
            notes = [note for note in origin.notes if "random" not in note]  # no weight is random any more
            notes += load_weights(model, user_path(weights))
            origin = replace(origin, initialization="checkpoint", weights=str(weights), notes=tuple(notes))
        check_model(model)
    return model, origin, home


def _from_user(origin: ModelOrigin, arguments: Mapping[str, Any], home: Home) -> tuple[nn.Module, ModelOrigin]:
    with undisturbed(home, origin.seed):
        module = home.module()
        factory = find_factory(module, origin.factory, origin.location)
        model = call_factory(factory, origin.spec, arguments, vars(module).get("__file__"))
    return model, replace(origin, location=home.location, initialization="factory")


def _from_library(origin: ModelOrigin, arguments: Mapping[str, Any]) -> tuple[nn.Module, ModelOrigin]:
    if origin.kind == "zoo":
        return zoo.build(origin.location, seed=origin.seed, arguments=arguments), origin
    with seeded(origin.seed):
        if origin.kind == "timm":
            return timm_model(origin.location, arguments), origin
        if origin.kind == "torchvision":
            return torchvision_model(origin.location, arguments), origin
        model, notes, from_files = transformers_model(origin.location, arguments)
    initialization = "checkpoint" if from_files else "random"
    return model, replace(origin, initialization=initialization, notes=tuple(notes))
