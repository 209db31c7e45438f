"""Models of other libraries, from this machine alone: transformers directories, timm and torchvision names."""

import fnmatch
import importlib
import inspect
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

from torch import nn

from normscope.core.errors import (
    FactoryError,
    InputError,
    MissingDependencyError,
    ModelNotFoundError,
    WeightsError,
    listed,
    suggestion,
)
from normscope.core.files import user_path
from normscope.zoo.user_code import explained

_WEIGHT_FILES = ("*.safetensors", "pytorch_model*.bin")


def optional(name: str, install: str) -> ModuleType:
    """Import a library that is not a dependency.

    >>> optional("json", "pip install json").__name__
    'json'
    """
    try:
        return importlib.import_module(name)
    except Exception as error:
        # A library built for another torch fails with RuntimeError and others.
        reason = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else 'no message'}"
        raise MissingDependencyError(
            f"This model needs {name}, which cannot be imported ({reason}). Install it: {install}."
        ) from error


def _unknown(library: str, name: str, names: Iterable[str]) -> ModelNotFoundError:
    return ModelNotFoundError(f"{library} has no model {name!r}. {suggestion(name, sorted(names), 0.5)}")


def timm_model(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Return a timm model with random weights; nothing is downloaded."""
    timm = optional("timm", "pip install 'normscope[vision]', with torchvision from the same index as torch")
    if arguments.get("pretrained"):
        raise FactoryError(
            "Models are never downloaded, got pretrained=True. Save the weights and pass them as a file."
        )
    if not timm.is_model(name):
        raise _unknown("timm", name, timm.list_models())
    try:
        return timm.create_model(name, **{**arguments, "pretrained": False})
    except Exception as error:
        raise explained(error, f"Building timm:{name}", "") from error


def torchvision_model(name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """Return a torchvision model with random weights; nothing is downloaded."""
    optional("torchvision", "pip install torchvision from the same index as torch")
    models = optional("torchvision.models", "pip install torchvision from the same index as torch")
    if name not in models.list_models():
        raise _unknown("torchvision", name, models.list_models())
    builder = models.get_model_builder(name)
    # Detection and segmentation builders download a backbone unless told not to.
    parameters = inspect.signature(builder).parameters
    silent = {key: None for key in ("weights", "weights_backbone") if key in parameters}
    asked = [key for key in silent if arguments.get(key) is not None]
    if asked:
        raise FactoryError(
            f"Models are never downloaded, got {listed(asked)}. Save the weights and pass them as a file."
        )
    try:
        return builder(**{**arguments, **silent})
    except Exception as error:
        raise explained(error, f"Building torchvision:{name}", "") from error


def _configuration(folder: Path) -> dict[str, Any]:
    """Return the directory's ``config.json``."""
    if not folder.is_dir():
        raise ModelNotFoundError(f"Directory not found: {folder}. Write hf:DIRECTORY.")
    file = folder / "config.json"
    if not file.is_file():
        raise ModelNotFoundError(f"No config.json found in {folder}. Save the model with save_pretrained(DIR).")
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise ModelNotFoundError(f"Expected {file} to be JSON: {error}. Save the model again.") from error
    if not isinstance(content, dict) or "model_type" not in content:
        raise ModelNotFoundError(
            f"Expected {file} to have a model_type that transformers knows, found none. Save the model "
            "with save_pretrained."
        )
    return content


def transformers_model(folder: str | Path, arguments: Mapping[str, Any]) -> tuple[nn.Module, list[str], bool]:
    """Return the model saved in a directory by transformers; code in the directory is never run.

    Returns:
        The model, remarks for the user, and whether its weights came from the directory.
    """
    folder = user_path(folder)
    configuration = _configuration(folder)
    transformers = optional("transformers", "pip install 'normscope[hf]'")
    try:
        names = [entry.name for entry in folder.iterdir()]
    except OSError as error:
        raise InputError(f"Cannot list {folder}: {error.strerror}.") from None
    has_weights = any(fnmatch.fnmatch(name, pattern) for name in names for pattern in _WEIGHT_FILES)
    notes: list[str] = []
    if configuration.get("auto_map"):
        notes.append("the directory contains code, which was not run")
    try:
        config = transformers.AutoConfig.from_pretrained(
            os.fspath(folder), local_files_only=True, trust_remote_code=False, **arguments
        )
        if not has_weights:
            notes.append("the directory has no weights: they are random")
            named = _architecture(transformers, config)
            model = named(config) if named else transformers.AutoModel.from_config(config, trust_remote_code=False)
            return model, notes, False
    except Exception as error:
        raise explained(error, f"Building hf:{folder}", "") from error
    try:
        model, loading = _quietly(transformers, folder, config)
    except Exception as error:
        first = str(error).splitlines()[0] if str(error) else "no message"
        raise WeightsError(
            f"The weights in {folder} do not fit its config.json ({type(error).__name__}: {first}). "
            "Save the model again."
        ) from error
    random = sorted(loading.get("missing_keys", ()))
    if random:
        notes.append(f"not in the files and therefore random: {listed(random)}")
    return model, notes, True


def _architecture(transformers: ModuleType, config: Any) -> Any:
    """Return the library's own class that the configuration names (its task head included), or ``None``."""
    for name in getattr(config, "architectures", None) or ():
        found = getattr(transformers, str(name), None)
        if isinstance(found, type) and issubclass(found, transformers.PreTrainedModel):
            return found
    return None


def _quietly(transformers: ModuleType, folder: Path, config: Any) -> tuple[nn.Module, dict[str, Any]]:
    """Load with progress bars and remarks off, and put the library's own settings back."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        named = _architecture(transformers, config)
        rest = {} if named is not None else {"trust_remote_code": False}
        return (named or transformers.AutoModel).from_pretrained(
            os.fspath(folder), config=config, local_files_only=True, output_loading_info=True, **rest
        )
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
