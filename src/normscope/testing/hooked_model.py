"""A copy of a user's model in float64 that records what passes through each of its modules, as a function of its input.

Bounds come from a graph; this is the other side of the comparison, so it uses none of it: the user's own ``forward``
runs, and hooks record the first tensor that goes into each module and the first that comes out.
"""

import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from normscope.core.environment import seed_torch
from normscope.core.errors import InputError
from normscope.graph.grouped_products import call_in_float64
from normscope.graph.inputs import ModelInputs

#: The path of a module and the number of its call, from zero.
ModuleCall = tuple[str, int]
#: The output of a module call, or ``None`` for the output of the model.
Place = ModuleCall | None
_NARROW = (torch.float32, torch.float16, torch.bfloat16)
_NARROWING = (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16)
#: Relative error of a value that is evaluated in float64, and in float32.
FLOAT64_NOISE, FLOAT32_NOISE = 1e-13, 1e-6


class _Float64Mode(TorchFunctionMode):
    """Compute in float64 what requests float32, and replace looked-up embeddings by given tensors.

    Args:
        tokens: the integer inputs of the model.
        blocks: tensors that replace the embeddings of these tokens, in order of use.
    """

    def __init__(self, tokens: Sequence[Tensor] = (), blocks: Sequence[Tensor] = ()) -> None:
        super().__init__()
        self.tokens, self.blocks, self.narrow = tokens, list(blocks), False
        self.embedded: list[Tensor] = []  # embeddings of the tokens that were not replaced

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one function of torch."""
        if func in _NARROWING:
            func = torch.Tensor.double
        args = tuple(torch.float64 if _is_narrow(a) else a for a in args)
        kwargs = {k: torch.float64 if _is_narrow(v) else v for k, v in (kwargs or {}).items()}
        out = call_in_float64(func, args, kwargs)
        if _is_token_lookup(func, args, self.tokens):
            if self.blocks and out.shape == self.blocks[0].shape:
                return self.blocks.pop(0)
            self.embedded.append(out.detach())
        if isinstance(out, Tensor) and out.dtype in _NARROW:
            self.narrow = True
        return out


def _is_token_lookup(func: Any, args: Any, tokens: Sequence[Tensor]) -> bool:
    """Return whether a call is that of an embedding of ids the model was given."""
    place = {F.embedding: 0, torch.embedding: 1}.get(func)
    return place is not None and any(args[place].shape == t.shape and torch.equal(args[place], t) for t in tokens)


def _is_narrow(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value in _NARROW


@dataclass(eq=False)
class ModuleTrace:
    """What one run recorded, one row per point."""

    output: Tensor  #: the floating outputs of the model, flattened side by side
    before: dict[ModuleCall, Tensor] = field(default_factory=dict)  #: what went into each call of a module
    after: dict[ModuleCall, Tensor] = field(default_factory=dict)  #: what came out of it
    order: list[ModuleCall] = field(default_factory=list)  #: the calls, in the order in which they ended

    def rows(self, call: Place) -> Tensor:
        """Return the tensor at a place, flattened, one row per point; ``None`` is the output of the model."""
        value = self.output if call is None else self.after[call]
        return value.reshape(len(self.output), -1)


class HookedModel:
    """A copy of a model in float64, as a function of the points at which it is attacked.

    A point is the floating inputs of one sample, or for token models the outputs of the embeddings, flattened side by
    side. Everything else the model takes stays fixed as in the given inputs.

    Args:
        model: the user's; it is copied, never run.
        inputs: one sample (or one stacked batch): a call of the model.
        blocks: shapes of the tensors in a point, and whether each is an ``input`` or an ``embedding output``.
        batch_statistics: let BatchNorm use the statistics of its batch.

    Raises:
        InputError: if the model cannot be copied.
    """

    def __init__(
        self,
        model: nn.Module,
        inputs: ModelInputs,
        blocks: Sequence[Mapping[str, Any]],
        *,
        batch_statistics: bool = False,
    ) -> None:
        try:
            self.model = copy.deepcopy(model).double().eval()
        except Exception as error:
            raise InputError(f"The model cannot be copied, so it cannot be attacked: {error}") from error
        self.model.requires_grad_(False)
        if batch_statistics:
            for module in self.model.modules():
                if isinstance(module, nn.modules.batchnorm._BatchNorm):
                    module.train()
        self.inputs = ModelInputs(
            tuple(_in_float64(a) for a in inputs.args), {k: _in_float64(v) for k, v in inputs.kwargs.items()}
        )
        takes = inspect.signature(self.model.forward).parameters
        if hasattr(self.model, "config") and "use_cache" in takes and "use_cache" not in inputs.kwargs:
            self.inputs.kwargs["use_cache"] = False
        self.shapes = [tuple(b["shape"]) for b in blocks]
        self.starts_at_embeddings = any(b["kind"] != "input" for b in blocks)
        self.modules = dict(self.model.named_modules())
        if self.starts_at_embeddings:  # what else the analysis varies (embedded positions, further inputs) is fixed
            known = set(self.shapes)
            self.shapes = [shape for t in self._embedded(self.inputs) if (shape := tuple(t.shape)) in known]
        self.stacked = any(s and s[0] != 1 for s in self.shapes)
        self.replaced_by_identity: set[str] = set()
        self.mixed: set[Place] = set()
        self.noise = FLOAT64_NOISE

    def point(self, inputs: ModelInputs | None = None) -> Tensor:
        """Return the point of some inputs; by default of those given to the constructor."""
        inputs = self.inputs if inputs is None else inputs
        if not self.starts_at_embeddings:
            found = [t.detach().double() for t in inputs.tensors() if t.is_floating_point()]
        else:
            found = self._embedded(inputs)
        shapes = [tuple(t.shape) for t in found]
        if shapes != self.shapes or not shapes:
            raise InputError(f"The analysis is about inputs of shapes {self.shapes}, but the model gets {shapes}.")
        return torch.cat([t.flatten() for t in found])

    def _embedded(self, inputs: ModelInputs) -> list[Tensor]:
        """Return the embeddings of the tokens, in order of use."""
        wide = _Float64Mode([t for t in inputs.tensors() if not t.is_floating_point()])
        with self._running(), wide, torch.no_grad():
            self.model(*inputs.args, **{**self.inputs.kwargs, **inputs.kwargs})
        return [t for t in wide.embedded if tuple(t.shape) in self.shapes]

    @contextmanager
    def _running(self) -> Iterator[None]:
        """Run without moving the random generators, in double precision, with attention that can be differentiated."""
        default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            with torch.random.fork_rng(devices=[]), sdpa_kernel(SDPBackend.MATH):
                seed_torch(0)
                yield
        finally:
            torch.set_default_dtype(default)

    def __call__(
        self,
        x: Tensor,
        shifts: Mapping[ModuleCall, Tensor] | None = None,
        weights: Mapping[str, Tensor] | None = None,
        *,
        watched: Iterable[str] | None = None,
    ) -> ModuleTrace:
        """Run the model at points, one per row, and record the input and output of every module.

        If one point is a stacked batch, there is one row. ``shifts`` are added to the outputs of module calls,
        ``weights`` replace parameters, and only the modules in ``watched`` are recorded; by default all are.
        """
        n = len(x)
        blocks = [
            part.reshape(n * shape[0] if shape else n, *shape[1:])
            for part, shape in zip(torch.split(x, [math.prod(s) for s in self.shapes], 1), self.shapes, strict=True)
        ]
        given = ModelInputs(
            tuple(self._repeated(a, n) for a in self.inputs.args),
            {k: self._repeated(v, n) for k, v in self.inputs.kwargs.items()},
        )
        tokens: list[Tensor] = [t for t in given.tensors() if not t.is_floating_point()]
        if not self.starts_at_embeddings:
            rest = iter(blocks)
            place = lambda v: next(rest) if isinstance(v, Tensor) and v.is_floating_point() else v  # noqa: E731
            given = ModelInputs(tuple(map(place, given.args)), {k: place(v) for k, v in given.kwargs.items()})
        trace = ModuleTrace(x)
        wide = _Float64Mode(tokens, blocks if self.starts_at_embeddings else ())
        names = (
            self.modules
            if watched is None
            else {*watched, *self.replaced_by_identity, *(name for name, _ in shifts or {})}
        )
        modules = {name: module for name, module in self.modules.items() if name in names}
        with self._running(), _recording(modules, trace, shifts or {}, self.replaced_by_identity), wide:
            out = functional_call(self.model, dict(weights or {}), given.args, given.kwargs)
        if wide.blocks:
            raise InputError("The embeddings of the model were not found in the second run.")
        if wide.narrow:
            self.noise = FLOAT32_NOISE
        found = [t.double().reshape(n, -1) for t in floats(out)]
        trace.output = torch.cat(found, 1) if found else torch.zeros(n, 0, dtype=torch.float64)
        return trace

    def _repeated(self, value: Any, n: int) -> Any:
        if not isinstance(value, Tensor) or n == 1 or not value.ndim or value.shape[0] != 1:
            return value
        return value.expand(n, *value.shape[1:])

    def mixed_calls(self, x: Tensor) -> set[Place]:
        """Return the places at which points run together give other rows than each point alone."""
        if self.stacked or len(x) < 2:
            return {None}
        with torch.no_grad():
            together, alone = self(x), [self(row[None]) for row in x]
        found: set[Place] = set()
        for call in (None, *together.order):
            try:
                rows = torch.cat([t.rows(call) for t in alone])
                same = torch.allclose(together.rows(call), rows, rtol=1e-6, atol=1e-9)
            except (RuntimeError, KeyError):  # no axis of samples
                same = False
            if not same:
                found.add(call)
        return found

    def class_name(self, call: ModuleCall) -> str:
        """Return the name of the class of a module."""
        return type(self.modules[call[0]]).__name__

    def function(self, call: ModuleCall) -> Callable[[Tensor], Tensor]:
        """Return a module without children as a function of its first input."""
        module = self.modules[call[0]]

        def apply(x: Tensor) -> Tensor:
            with self._running(), _Float64Mode():
                out = module(x)
            return out if isinstance(out, Tensor) else next(floats(out))

        return apply


@contextmanager
def _recording(
    modules: Mapping[str, nn.Module],
    trace: ModuleTrace,
    shifts: Mapping[ModuleCall, Tensor],
    replaced_by_identity: set[str],
) -> Iterator[None]:
    """Record every call of every module while the context lasts."""
    counts: dict[str, int] = {}

    def hook(name: str) -> Callable[..., Any]:
        def record(_: nn.Module, args: Any, kwargs: Any, out: Any) -> Any:
            call = (name, counts.get(name, 0))
            counts[name] = call[1] + 1
            first = next(floats((args, kwargs)), None)
            if name in replaced_by_identity and first is not None:
                out = first
            last = next(floats(out), None)
            if last is None:
                return None
            if call in shifts and out is last:
                out = last = last + shifts[call].reshape(last.shape)
            if first is not None:
                trace.before[call] = first
            trace.after[call] = last
            trace.order.append(call)
            return out

        return record

    handles = [m.register_forward_hook(hook(name), with_kwargs=True) for name, m in modules.items()]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def floats(value: Any) -> Iterator[Tensor]:
    """Yield the floating tensors in a value, in order.

    >>> [t.item() for t in floats({"a": torch.tensor(1.0), "b": [torch.tensor(2), torch.tensor(3.0)]})]
    [1.0, 3.0]
    """
    if isinstance(value, Tensor):
        if value.is_floating_point():
            yield value
    elif isinstance(value, Mapping):
        for item in value.values():
            yield from floats(item)
    elif isinstance(value, tuple | list):
        for item in value:
            yield from floats(item)


def _in_float64(value: Any) -> Any:
    """Return a tensor detached, floating ones in float64; return anything else as it is."""
    if isinstance(value, Tensor):
        return value.detach().double() if value.is_floating_point() else value.detach().clone()
    return value
