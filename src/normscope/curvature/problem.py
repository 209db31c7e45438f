"""A loss as a function of a model's parameters, on fixed data and in a fixed mode."""

from __future__ import annotations

import contextlib
import fnmatch
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.environment import seed_torch
from normscope.core.errors import InputError, NonFiniteError, failures_of_the_model, listed
from normscope.curvature.batch_norm import BatchNormMode
from normscope.graph.capture import tensors_in
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs, first_samples, iterate
from normscope.graph.objective import LossFunction, Outputs, prediction, probe_loss
from normscope.graph.second_derivatives import twice_differentiable
from normscope.graph.signature import signature_of
from normscope.graph.statefulness import evaluating
from normscope.graph.wrappers import require_module


@dataclass(frozen=True)
class ParameterBlock:
    """One parameter as a slice of the vector of all parameters."""

    name: str  #: of the parameter
    shape: torch.Size  #: its shape
    place: slice  #: its entries in the vector


@dataclass(frozen=True)
class LossTerm:
    """One summand of the loss: a batch under one fixed set of dropout masks."""

    inputs: ModelInputs  #: the batch, with labels
    share: float  #: its share of all samples
    seed: int  #: of the dropout masks


class Problem:
    r"""The loss :math:`L(w) = \sum_b s_b L_b(w)`, a mean over batches weighted by their sizes.

    Use it as a context manager: inside, the model may be run; afterwards it is as it was. A batch is never split, since
    BatchNorm in batch mode makes it one input.

    Args:
        model: the network; it is not changed.
        data: batches with labels, as :func:`normscope.graph.inputs.iterate` takes them.
        loss: the loss ``f(outputs, labels)``; by default the model's own, cross-entropy for class numbers, or the mean
            squared error for numbers.
        mode: what BatchNorm does: ``batch`` (as in training), ``running`` (as in evaluation) or ``frozen-batch``.
        parameters: name patterns such as ``layer1.*``; by default every parameter that requires a gradient.
        masks: how many fixed dropout masks the loss is averaged over; 0 switches dropout off.
        batch: the size of batches that tensors and datasets are cut into.
        limit: how many samples to use, at most.
        dtype: compute in this precision instead of the model's own; by default in float32 if that is shorter.
        seed: the seed of the dropout masks.

    Raises:
        InputError: if no parameter matches, there are no labels to compute a loss from, or an argument is out of range.

    >>> model = nn.Linear(2, 1, bias=False)
    >>> with Problem(model, (torch.ones(4, 2), torch.zeros(4, 1))) as problem:
    ...     round(problem.value(torch.tensor([1.0, 1.0])), 6), problem.dimension
    (4.0, 2)
    """

    def __init__(
        self,
        model: nn.Module,
        data: Any,
        loss: LossFunction | None = None,
        *,
        mode: str = "batch",
        parameters: str | Sequence[str] | None = None,
        masks: int = 0,
        batch: int = 128,
        limit: int | None = None,
        dtype: torch.dtype | None = None,
        seed: int = 0,
    ) -> None:
        require_module(model)
        if masks < 0:
            raise InputError(f"Expected the number of dropout masks to be at least 0, got {masks}.")
        BatchNormMode(mode)  # an unknown mode is refused before anything runs
        self.model, self.loss, self.mode, self.masks, self.seed = model, loss, mode, masks, seed
        self.terms = _terms(data, model, batch, limit, max(1, masks), seed, own=loss is None)
        self.samples = sum(term.inputs.batch for term in self.terms) // max(1, masks)
        named = dict(model.named_parameters())
        chosen = _chosen(named, parameters)
        first = next(iter(chosen.values()))
        short = first.dtype.itemsize < 4  # in which second derivatives are noise
        dtype = dtype or (torch.float32 if short else None)
        self.dtype, self.device = dtype or first.dtype, first.device
        self.blocks: tuple[ParameterBlock, ...] = tuple(blocks_of(chosen))
        self.dimension = self.blocks[-1].place.stop
        self._cast = dtype is not None
        self._values = {name: self._as(p.detach()) for name, p in named.items()}
        self._buffers = {name: self._as(b.detach()) for name, b in model.named_buffers()}
        if self._cast:
            self.terms = tuple(replace(term, inputs=term.inputs.changed(self._as)) for term in self.terms)
        self._stack: contextlib.ExitStack | None = None

    def _as(self, tensor: Tensor) -> Tensor:
        """Return a tensor in the requested precision."""
        return tensor.to(self.dtype) if self._cast and tensor.is_floating_point() else tensor

    def __enter__(self) -> Problem:
        with contextlib.ExitStack() as stack:
            stack.enter_context(untouched(self.model))
            stack.enter_context(twice_differentiable(self.model))
            stack.enter_context(BatchNormMode(self.mode))
            evaluating(self.model)
            if self.masks:
                self.model.train()
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        assert self._stack is not None
        self._stack.__exit__(*error)
        self._stack = None

    def point(self) -> Tensor:
        """Return the parameters as they are, as one vector."""
        return self.flat({block.name: self._values[block.name] for block in self.blocks})

    def flat(self, tensors: Mapping[str, Tensor]) -> Tensor:
        """Return tensors by name of parameter as one vector; missing ones are zero."""
        return self.flatten([tensors.get(block.name) for block in self.blocks])

    def split(self, vector: Tensor) -> dict[str, Tensor]:
        """Return the parts of a vector, or of several in rows, by name of parameter, as views."""
        rows = vector.shape[:-1]
        return {block.name: vector[..., block.place].view((*rows, *block.shape)) for block in self.blocks}

    def random(self, seed: int, dtype: torch.dtype | None = None) -> Tensor:
        """Return a Gaussian vector of the size of the parameters, the same for every device and precision."""
        generator = torch.Generator().manual_seed(seed)
        drawn = torch.randn(self.dimension, generator=generator, dtype=torch.float64)
        return drawn.to(self.device, dtype or self.dtype)

    def outputs(self, parameters: Mapping[str, Tensor], term: LossTerm) -> Outputs:
        """Run the model on one term with these parameters in place of its own.

        Raises:
            ModelFailedError: if the model raises an exception, on any run.
        """
        buffers = {name: buffer.clone() for name, buffer in self._buffers.items()}
        seed_torch(term.seed)
        arguments = self._values | dict(parameters) | buffers
        with failures_of_the_model():
            found = torch.func.functional_call(self.model, arguments, term.inputs.args, term.inputs.kwargs)
        return dict(tensors_in(found))

    def loss_of(self, outputs: Outputs, term: LossTerm) -> Tensor:
        """Return the loss of outputs.

        Raises:
            InputError: if there is none: no labels and no loss of the model's own.
        """
        value = probe_loss(outputs, term.inputs.labels, self.loss)
        if value is None:
            raise InputError("Expected labelled data or a loss. Pass (inputs, labels) or loss=f(outputs).")
        return value

    def prediction(self, outputs: Outputs) -> Tensor:
        """Return the output that the loss compares with labels."""
        return prediction(outputs)

    def leaves(self, vector: Tensor | None = None) -> dict[str, Tensor]:
        """Return the parameters as leaves to differentiate with respect to."""
        if vector is None:
            values = {block.name: self._values[block.name].detach() for block in self.blocks}
        else:
            values = self.split(vector.detach().to(self.dtype))
        return {name: value.requires_grad_(True) for name, value in values.items()}

    def value(self, vector: Tensor | None = None) -> float:
        """Return the loss at a vector of parameters."""
        with torch.no_grad():
            leaves = self.leaves(vector)
            return sum(
                term.share * float(self.loss_of(self.outputs(leaves, term), term).double()) for term in self.terms
            )

    def gradient(self, vector: Tensor | None = None) -> tuple[float, Tensor]:
        """Return the loss and its gradient at a vector of parameters, summed over terms in float64.

        Raises:
            NonFiniteError: if the loss is NaN or infinite.
        """
        total, value = torch.zeros((), dtype=torch.float64, device=self.device), 0.0
        for term in self.terms:
            leaves = self.leaves(vector)
            loss = self.loss_of(self.outputs(leaves, term), term)
            parts = torch.autograd.grad(loss, list(leaves.values()), allow_unused=True)
            value += term.share * float(loss.detach().double())
            total = self.flatten(parts) if term.share == 1.0 else total + term.share * self.flatten(parts).double()
        if not torch.isfinite(torch.tensor(value)):
            broken = [name for name, tensor in self._values.items() if not bool(torch.isfinite(tensor).all())]
            where = f" Weights that are not finite: {listed(broken)}." if broken and vector is None else ""
            raise NonFiniteError(f"The loss is {value}, but curvature needs a finite loss.{where}")
        return value, total.to(self.dtype)

    def flatten(self, parts: Sequence[Tensor | None], like: Tensor | None = None) -> Tensor:
        """Return one tensor per block as one vector; a missing one is zero.

        Args:
            parts: one per block; of several vectors at once, stacked.
            like: a vector, or several in rows, whose shape the result has.
        """
        rows = () if like is None else tuple(like.shape[:-1])
        pieces = [
            torch.zeros(*rows, block.shape.numel(), dtype=self.dtype, device=self.device)
            if part is None
            else part.detach().reshape(*rows, -1).to(self.device, self.dtype)
            for block, part in zip(self.blocks, parts, strict=True)
        ]
        return torch.cat(pieces, dim=-1)


def _terms(
    data: Any, model: nn.Module, batch: int, limit: int | None, masks: int, seed: int, *, own: bool
) -> tuple[LossTerm, ...]:
    """Return the batches of the data under every mask; with labels as an argument if the model computes its loss."""
    batches = list(limited(iterate(data, model, batch=batch), limit))
    if own and batches and takes_labels(model, batches[0]):
        batches = [labelled(inputs) for inputs in batches]
    total = sum(inputs.batch for inputs in batches)
    if not total:
        raise InputError("Expected at least one sample.")
    return tuple(
        LossTerm(inputs, inputs.batch / total / masks, seed + mask) for inputs in batches for mask in range(masks)
    )


def takes_labels(model: nn.Module, inputs: ModelInputs) -> bool:
    """Return whether a model computes its own loss from ``labels``, as language models of ``transformers`` do.

    Args:
        model: the model; it is left as it was.
        inputs: a batch of arguments by name, with labels.
    """
    if inputs.args or inputs.labels is None or "labels" not in signature_of(model).keywords:
        return False
    few = labelled(first_samples(inputs, 2))
    try:
        with untouched(model), torch.no_grad():
            evaluating(model)
            found = dict(tensors_in(model(**few.kwargs))).get("loss")
    except Exception:  # the user's code may raise anything; the loss is then computed from the labels here
        return False
    return found is not None and found.numel() == 1


def labelled(inputs: ModelInputs) -> ModelInputs:
    """Return a batch with its labels also as a keyword argument.

    >>> labelled(ModelInputs((), {"x": torch.zeros(1)}, torch.ones(1))).kwargs["labels"].tolist()
    [1.0]
    """
    return replace(inputs, kwargs={**inputs.kwargs, "labels": inputs.labels})


def limited(batches: Iterable[ModelInputs], limit: int | None) -> Iterator[ModelInputs]:
    """Yield batches up to a number of samples; the last one is cut.

    >>> [inputs.batch for inputs in limited([ModelInputs((torch.zeros(2, 2),))] * 3, 3)]
    [2, 1]
    """
    left = sys.maxsize if limit is None else limit
    for inputs in batches:
        yield first_samples(inputs, left)
        left -= inputs.batch
        if left <= 0:
            return


def _chosen(named: Mapping[str, nn.Parameter], patterns: str | Sequence[str] | None) -> dict[str, Tensor]:
    """Return the parameters that patterns select.

    Raises:
        InputError: if a pattern matches none, or a chosen parameter is not a floating tensor.
    """
    if patterns is None:
        found = {name: p for name, p in named.items() if p.requires_grad and p.is_floating_point()}
        if not found:
            raise InputError("Expected a model with trainable parameters, got one without.")
        return dict(found)
    wanted = (patterns,) if isinstance(patterns, str) else tuple(patterns)
    for pattern in wanted:
        if not fnmatch.filter(named, pattern):
            raise InputError(f"No parameter matches {pattern!r}. The model has: {listed(list(named))}.")
    return {name: p for name, p in named.items() if any(fnmatch.fnmatch(name, pattern) for pattern in wanted)}


def blocks_of(chosen: Mapping[str, Tensor]) -> Iterator[ParameterBlock]:
    """Yield tensors as consecutive slices of one vector."""
    at = 0
    for name, parameter in chosen.items():
        yield ParameterBlock(name, parameter.shape, slice(at, at + parameter.numel()))
        at += parameter.numel()
