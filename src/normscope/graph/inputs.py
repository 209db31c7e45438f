"""Data in the form a model accepts: from tensors, arrays, batches and loaders, or guessed from the model."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, default_collate

from normscope.core.environment import restore_rng, rng_state
from normscope.core.errors import InputError, NonFiniteInputError, NormscopeError
from normscope.core.numbers import parse_shape
from normscope.graph.candidates import Sampler, from_configuration, from_layers, from_shape
from normscope.graph.guard import untouched
from normscope.graph.safe_load import unlike_numbers
from normscope.graph.signature import InnermostModule, input_device, input_dtype, signature_of, sized_layers
from normscope.graph.statefulness import evaluating, refuse_quantized
from normscope.graph.weights_validation import count_non_finite, non_finite_text

_ADVICE = "Pass a shape (--input 3,224,224, without the batch axis) or data (--data, data=...)."
#: Where torch's own code lies.
_TORCH = Path(torch.__file__).parent
_LABELS = ("labels", "label", "targets", "target", "y")
#: Number of axes, with the batch axis, that a convolution takes.
_AXES: dict[type[nn.Module], int] = {nn.Conv1d: 3, nn.Conv2d: 4, nn.Conv3d: 5}


@dataclass(frozen=True)
class ModelInputs:
    """The arguments of one call of a model, batched along axis 0.

    Attributes:
        args: positional arguments.
        kwargs: keyword arguments.
        labels: the labels of the batch, if the data has any; not an argument.
    """

    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict)
    labels: Tensor | None = None

    def tensors(self) -> list[Tensor]:
        """Return the tensors among the arguments, in order."""
        return [value for value in (*self.args, *self.kwargs.values()) if isinstance(value, Tensor)]

    @property
    def batch(self) -> int:
        """Return the size of the batch."""
        return next((t.shape[0] for t in self.tensors() if t.ndim), 0)

    def changed(self, change: Callable[[Tensor], Tensor]) -> ModelInputs:
        """Return the same with every tensor changed, labels included."""

        def changed(value: Any) -> Any:
            return change(value) if isinstance(value, Tensor) else value

        kwargs = {name: changed(value) for name, value in self.kwargs.items()}
        return ModelInputs(tuple(map(changed, self.args)), kwargs, changed(self.labels))


def picked(inputs: ModelInputs, samples: slice) -> ModelInputs:
    """Return some samples of a batch, with their labels.

    >>> picked(ModelInputs((torch.zeros(5, 2), torch.ones(3))), slice(1, 3)).args[0].shape
    torch.Size([2, 2])
    """
    size = inputs.batch
    return inputs.changed(lambda t: t[samples] if t.ndim and len(t) == size else t)


def first_samples(inputs: ModelInputs, count: int) -> ModelInputs:
    """Return the first samples of a batch, all of it if it has no more."""
    return picked(inputs, slice(count))


def as_inputs(data: Any, model: nn.Module, first: int = 0) -> ModelInputs:
    """Return one batch of data as the arguments of a model.

    Numbers are brought to the dtype and device of the model's parameters.

    Args:
        data: a tensor or array; a tuple or list of them, of which the leading ones go to the required arguments of
            ``model.forward`` and the next one is the labels, also as ``((x, z), labels)``; or a mapping from argument
            names.
        model: the model that will take it.
        first: the number of the first sample, for messages.

    Raises:
        InputError: if the data is empty, of a type or dtype the model cannot take, or lacks the batch axis.

    >>> inputs = as_inputs((torch.zeros(4, 3), torch.tensor([0, 1, 0, 1])), nn.Linear(3, 2))
    >>> [tuple(a.shape) for a in inputs.args], inputs.labels.tolist()
    ([(4, 3)], [0, 1, 0, 1])
    """
    if isinstance(data, ModelInputs):
        inputs = data
    elif isinstance(data, Mapping):
        inputs = _from_mapping(data, model, None)
    elif isinstance(data, tuple | list):
        inputs = _from_sequence(data, model)
    else:
        inputs = _called(model, [_tensor(data, model)])
    _check(inputs, model, first)
    return inputs


def iterate(data: Any, model: nn.Module, *, batch: int = 64) -> Iterator[ModelInputs]:
    """Yield data batch by batch as the arguments of a model; the random generators are left as they were.

    Args:
        data: what :func:`as_inputs` takes, cut along axis 0; a dataset; or a loader or other iterable of batches.
            A list or tuple of tensors is one batch, not several.
        model: the model that will take it.
        batch: the size of the pieces that tensors and datasets are cut into.

    Raises:
        InputError: if there is no batch, or one of them is not what the model accepts.

    >>> [inputs.batch for inputs in iterate(torch.zeros(5, 3), nn.Linear(3, 2), batch=2)]
    [2, 2, 1]
    """
    state = rng_state()
    empty, seen = True, 0
    try:
        for item in _batches(data, model, batch):
            empty = False
            inputs = as_inputs(item, model, seen)
            seen += inputs.batch
            yield inputs
    finally:
        restore_rng(state)
    if empty:
        raise InputError("Expected at least one batch of data, got none.")


def guess_inputs(
    model: nn.Module, shape: Sequence[int] | str | None = None, dtype: torch.dtype | None = None, batch: int = 2
) -> ModelInputs:
    """Return example inputs for a model without data: the first guess that the model runs on.

    Args:
        model: the model; it is run, and left as it was.
        shape: the shape of its input without the batch axis, as numbers or as text like ``"3,224,224"``.
        dtype: the dtype of its input.
        batch: the size of the batch.

    Raises:
        InputError: if the model does not run on the given shape, or on any that was guessed.
        WeightsError: if it is quantized.

    >>> guess_inputs(nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())).args[0].shape
    torch.Size([2, 3, 224, 224])
    """
    refuse_quantized(model)
    sampler = Sampler(model, batch)
    if shape is not None:
        return check_runs(model, _assign(from_shape(model, sampler, parse_shape(shape), dtype), model))
    tried: list[str] = []
    for source in (from_configuration, from_layers):
        for named in source(model, sampler):
            guess = named if dtype is None else {name: value.to(dtype) for name, value in named.items()}
            try:
                return check_runs(model, _assign(guess, model))
            except InputError as error:
                tried.append(f"{_shapes(guess.values())}: {error.__cause__ or error}".splitlines()[0])
    found = f"tried {'; '.join(tried[:3])}" if tried else "no layer determines the size of its input"
    raise InputError(f"Could not guess the shape of the model's input ({found}). {_ADVICE}")


def _batches(data: Any, model: nn.Module, batch: int) -> Iterator[Any]:
    """Yield the batches of any kind of data."""
    refuse_unusable(data)
    data = _unnested(data, model)
    if isinstance(data, ModelInputs):
        yield data
    elif isinstance(data, Tensor | np.ndarray):
        yield from (piece[0] for piece in _cut({0: data}, batch))
    elif isinstance(data, Mapping):
        yield from _cut(data, batch)
    elif isinstance(data, tuple | list) and any(isinstance(item, Tensor | np.ndarray) for item in data):
        yield from (tuple(piece.values()) for piece in _cut(dict(enumerate(data)), batch))
    elif isinstance(data, Dataset):
        yield from DataLoader(data, batch_size=batch, generator=torch.Generator().manual_seed(0), collate_fn=_collated)
    elif isinstance(data, Iterable) and not isinstance(data, str | bytes):
        yield from data
    else:
        raise InputError(
            f"Expected data to be a tensor, an array, a batch, a dataset or a loader, got {type(data).__name__}."
        )


def _unnested(data: Any, model: nn.Module) -> Any:
    """Return ``((x, z), labels)`` as ``(x, z, labels)`` where the model takes several inputs."""
    nested = isinstance(data, tuple | list) and len(data) in (1, 2) and isinstance(data[0], tuple | list)
    if not nested or not all(isinstance(item, Tensor | np.ndarray) for item in (*data[0], *data[1:])):
        return data
    signature = signature_of(model)
    several = len(data[0]) > 1 and len(data[0]) == len(signature.required) + len(signature.named)
    return (*data[0], *data[1:]) if several else data


def _collated(samples: list[Any]) -> Any:
    """Return samples of a dataset as a batch; parts that cannot be stacked (boxes, pictures) stay lists."""
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: _stacked([sample.get(key) for sample in samples]) for key in first}
    if isinstance(first, tuple | list):
        return tuple(_stacked(list(column)) for column in zip(*samples, strict=False))
    return (_stacked(samples),)


def _stacked(column: list[Any]) -> Any:
    """Return one part of several samples stacked, or as it is if it cannot be."""
    try:
        return default_collate(column)
    except (TypeError, RuntimeError, KeyError):
        return column


def _cut(data: Mapping[Any, Any], batch: int) -> Iterator[dict[Any, Any]]:
    """Yield pieces of tensors along axis 0, and of lists as long, if all have one length; else all at once."""
    lengths = {len(v) for v in data.values() if isinstance(v, Tensor | np.ndarray) and v.ndim}
    if len(lengths) != 1:
        yield dict(data)
        return
    length = lengths.pop()
    cut = {k for k, v in data.items() if getattr(v, "ndim", 0) or (isinstance(v, list | tuple) and len(v) == length)}
    for start in range(0, length, batch):
        yield {key: value[start : start + batch] if key in cut else value for key, value in data.items()}


def _from_sequence(data: Sequence[Any], model: nn.Module) -> ModelInputs:
    """Divide a sequence into the required arguments and the labels."""
    data = _unnested(data, model)
    if not data:
        raise InputError("Expected a batch with at least one tensor, got an empty one.")
    if isinstance(data[0], Mapping):
        return _from_mapping(data[0], model, data[1] if len(data) > 1 else None)
    signature = signature_of(model)
    wanted = (*signature.required, *signature.named)
    count = len(data) if signature.any_positional else max(1, len(wanted))
    if len(data) < count:
        names = ", ".join(wanted)
        raise InputError(f"The model's forward needs {count} inputs ({names}), but the batch has {len(data)}.")
    labels = _labels(data[count], model) if len(data) > count else None
    return _called(model, [_value(item, model) for item in data[:count]], labels)


def _called(model: nn.Module, values: Sequence[Any], labels: Tensor | None = None) -> ModelInputs:
    """Return values as arguments: in their order, the last ones by name where a forward accepts them only by name."""
    signature = signature_of(model)
    split = max(len(signature.required), len(values) - len(signature.named))
    return ModelInputs(tuple(values[:split]), dict(zip(signature.named, values[split:], strict=False)), labels)


def _from_mapping(data: Mapping[str, Any], model: nn.Module, labels: Any) -> ModelInputs:
    """Take the labels out of a mapping and the arguments by name."""
    signature = signature_of(model)
    named = {str(key): value for key, value in data.items()}
    for key in _LABELS:
        if key in named and key not in (*signature.required, *signature.named):
            found = named.pop(key)
            labels = found if labels is None else labels
    unknown = [] if signature.any_keyword else [key for key in named if key not in signature.keywords]
    tensors = [key for key in unknown if isinstance(named[key], Tensor | np.ndarray)]
    kept = {key: _value(value, model) for key, value in named.items() if key not in unknown}
    if tensors or not kept:
        given = ", ".join(tensors or named) or "nothing"
        raise InputError(f"The model's forward accepts {', '.join(signature.keywords)}, but the batch has {given}.")
    return ModelInputs((), kept, _labels(labels, model))


def _value(value: Any, model: nn.Module) -> Any:
    """Return an argument: arrays and tensors converted, anything else as it is."""
    return _tensor(value, model) if isinstance(value, Tensor | np.ndarray) else value


def _labels(value: Any, model: nn.Module) -> Tensor | None:
    """Return labels as a tensor, or None for those that are not numbers (names of files, boxes): they are left out."""
    if isinstance(value, list | tuple | int | float):
        try:
            value = torch.as_tensor(value)
        except (TypeError, ValueError, RuntimeError):  # words, mappings, rows of several lengths
            return None
    numbers = isinstance(value, Tensor) or (isinstance(value, np.ndarray) and value.dtype.kind in "biufc")
    return _tensor(value, model, cast=False) if numbers else None


def _tensor(value: Any, model: nn.Module, *, cast: bool = True) -> Tensor:
    """Return a tensor on the model's device and, if it holds numbers and ``cast``, in the model's dtype."""
    if isinstance(value, np.ndarray):
        if value.dtype.kind not in "biufc":
            raise InputError(f"Expected an array of numbers, got dtype {value.dtype}.")
        value = torch.from_numpy(np.array(value))  # a copy: the model may overwrite its input
    if not isinstance(value, Tensor):
        raise InputError(
            "Expected data to be a tensor, an array, a tuple or mapping of them, or a loader that "
            f"yields these; got {type(value).__name__}."
        )
    refuse_unusable(value)
    if value.is_inference() and not torch.is_inference_mode_enabled():
        value = value.clone()  # a tensor made in inference mode cannot be differentiated
    dtype = input_dtype(model, value.dtype) if cast and value.is_floating_point() else value.dtype
    return value.detach().to(input_device(model), dtype)


def refuse_unusable(value: Any) -> None:
    """Raise if a value is a tensor without values (meta device), or a sparse, nested or quantized one.

    >>> refuse_unusable(torch.zeros(2))
    """
    kind, mend = unlike_numbers(value) if isinstance(value, Tensor) else ("", "")
    if kind:
        raise InputError(f"Expected a dense tensor of numbers, got one that is {kind}. Pass {mend}.")


def _check(inputs: ModelInputs, model: nn.Module, first_sample: int) -> None:
    """Raise if a batch cannot be what the model takes."""
    tensors = inputs.tensors()
    if not tensors and (inputs.args or inputs.kwargs):
        held = ", ".join(sorted({type(value).__name__ for value in (*inputs.args, *inputs.kwargs.values())}))
        raise InputError(
            f"Expected a batch of tensors or arrays, got {held}. Convert the numbers with torch.tensor(...)."
        )
    if not tensors or any(t.numel() == 0 for t in tensors):
        raise InputError("Expected a batch with at least one entry, got an empty one.")
    names = [str(i) for i in range(len(inputs.args))] + list(inputs.kwargs)
    for name, value in zip(names, (*inputs.args, *inputs.kwargs.values()), strict=True):
        if not isinstance(value, Tensor):
            continue
        if value.is_complex():
            raise InputError(
                f"Expected real inputs, but input {name} is {value.dtype}. Pass its real and imaginary parts."
            )
        _check_finite(name, value, first_sample)
    first = next((pair for pair in sized_layers(model)), None)
    if first is None:
        return
    _refuse_missing_batch_axis(tensors[0], *first, others=len(tensors) > 1)
    problem = "" if len(tensors) > 1 else _unlike_first(tensors[0], *first)
    if problem:
        try:
            check_runs(model, inputs)  # the layer that is registered first need not be the first to run
        except InputError:
            raise InputError(problem) from None


def _check_finite(name: str, value: Tensor, first_sample: int) -> None:
    """Raise if an input contains NaN or infinity; a mask may use minus infinity for "never"."""
    nan, infinite = (0, 0) if value.is_meta or "mask" in name else count_non_finite(value)
    if nan or infinite:
        broken = ~torch.isfinite(value.float() if value.element_size() == 1 else value)
        sample = first_sample + (int(broken.nonzero()[0, 0]) if value.ndim else 0)
        raise NonFiniteInputError(
            f"Expected finite inputs, but input {name} has {non_finite_text(nan, infinite, value.numel())} entries, "
            f"the first in sample {sample}. Remove such samples, or fix the code that computes them."
        )


def _refuse_missing_batch_axis(value: Tensor, path: str, layer: nn.Module, *, others: bool) -> None:
    """Raise if the first input is one sample for the model's first layer, which would treat it as a batch."""
    axes = _AXES.get(type(layer)) if isinstance(layer, nn.modules.conv._ConvNd) and not others else None
    image = axes is not None and value.is_floating_point() and value.ndim == axes - 1
    vector = isinstance(layer, nn.Linear) and value.is_floating_point() and value.ndim < 2
    size = layer.in_channels if image else layer.in_features if vector else None
    if size is not None and (not value.ndim or value.shape[0] == size):
        raise InputError(
            f"The model's first layer, {path or type(layer).__name__}, is {layer}, but the input of shape "
            f"{tuple(value.shape)} lacks the batch axis. Pass x.unsqueeze(0)."
        )


def _unlike_first(value: Tensor, path: str, layer: nn.Module) -> str:
    """Return why the model's first layer cannot take an input of this dtype or with these ids, or an empty text."""
    where = f"The model's first layer, {path or type(layer).__name__}, is {layer}"
    if isinstance(layer, nn.Embedding):
        if value.is_floating_point():
            return f"{where}, which expects integer ids, but the input is {value.dtype}. Pass token ids."
        if not value.is_meta and not 0 <= int(value.min()) <= int(value.max()) < layer.num_embeddings:
            return f"{where}, but the ids range from {int(value.min())} to {int(value.max())}."
    if isinstance(layer, nn.modules.conv._ConvNd) and type(layer) in _AXES and not value.is_floating_point():
        return (
            f"{where}, which expects floating-point numbers, but the input is {value.dtype}. Pass e.g. x.float() / 255."
        )
    return ""


def _assign(named: Mapping[str, Tensor], model: nn.Module) -> ModelInputs:
    """Return the arguments of a guess; the empty name stands for every required argument."""
    if "" not in named:
        return ModelInputs((), dict(named))
    signature = signature_of(model)
    return _called(model, [named[""]] * max(1, len(signature.required) + len(signature.named)))


def check_runs(model: nn.Module, inputs: ModelInputs) -> ModelInputs:
    """Return the inputs if the model runs on them; it is left as it was.

    Raises:
        InputError: if it does not run, saying in which layer and on what shape.
    """
    where = InnermostModule(model)
    try:
        with untouched(model, *inputs.tensors()), torch.no_grad():
            evaluating(model)
            with where:
                model(*inputs.args, **inputs.kwargs)
    except NormscopeError:
        raise
    except (Exception, SystemExit) as error:  # the user's code may raise anything, and call sys.exit()
        at, advice = (f" in {where.text}", " Pass another shape (--input) or other data.") if where.text else ("", "")
        shape = _shapes(inputs.tensors())
        raise InputError(
            own_exception(error, shape, where.path)
            or f"The model does not run on an input of shape {shape}{at}: {_reason(error)}.{advice}"
        ) from error
    return inputs


def own_exception(error: BaseException, shape: str, path: str = "") -> str:
    """Return a sentence on an exception that the model's own code raised, with its line; empty if torch's code did.

    Args:
        error: what running the model raised.
        shape: the shape of its input.
        path: the module that raised, if it is not the whole model.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    if isinstance(error, SystemExit) or Path(last.filename).is_relative_to(_TORCH):
        return ""
    forward = f"{path}.forward()" if path else "forward()"
    raised = f"{type(error).__name__}: {error}".rstrip(": ")
    return f"{forward} raised {raised} ({Path(last.filename).name}, line {last.lineno}) on an input of shape {shape}."


def _reason(error: BaseException) -> str:
    """Return the text of an error; the exit of a process has only a number."""
    return f"it called sys.exit({error})" if isinstance(error, SystemExit) else str(error)


def _shapes(tensors: Iterable[Tensor]) -> str:
    """Return the shapes of tensors for a message."""
    return ", ".join(str(tuple(t.shape)) for t in tensors)
