"""From a model and example inputs to a graph: ``torch.export``, and a recorder where it fails.

Small models are recorded first where that is enough: loading ``torch.export`` takes over a second.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import inspect
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.core.errors import CaptureError, InputError, NonFiniteError
from normscope.core.names import numbered
from normscope.graph.export import export_graph
from normscope.graph.guard import copies, untouched
from normscope.graph.inputs import ModelInputs, own_exception
from normscope.graph.interpreter import as_floating, run
from normscope.graph.ir import Graph, Node, Ref, map_refs
from normscope.graph.recorder import record_graph, with_unknown_outputs
from normscope.graph.signature import signature_of
from normscope.graph.statefulness import MODES, RepeatedRuns, evaluating, refuse_quantized
from normscope.graph.two_recordings import graph_of_two_recordings, may_be_recorded
from normscope.graph.unrelated_inputs import number_of_probes, unrelated
from normscope.graph.weights_validation import USE_FINITE

ELSEWHERE_NOTE = "the model behaves differently on inputs unlike the example: the outputs are marked unknown"
RECORDED_NOTE = (
    "torch.export failed ({}); the model was recorded by running it: where control flow depends on the data, "
    "the outputs are marked unknown"
)
_PREFIX = "model"
#: The most numbers in all inputs unlike the example if they are run as one batch.
AT_ONCE = 2**20
_ANY_ATTENTION = [SDPBackend.FLASH_ATTENTION, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]
_RMS_NORMS = ("aten.rms_norm.default", "aten._fused_rms_norm.default")


class Tensors(dict[str, Tensor]):
    """Tensors by name; unlike a plain dictionary, this one can be referred to weakly."""


@dataclass(frozen=True, eq=False)
class Captured:
    """A model as a graph, its tensors, and the example it was captured on.

    Attributes:
        graph: what it computes.
        tensors: parameters, buffers and constants by name.
        example: one tensor per input node, the batch axis first.
        input_names: a name for each input.
    """

    graph: Graph
    tensors: dict[str, Tensor]
    example: list[Tensor]
    input_names: list[str]
    _in_precision: WeakValueDictionary[torch.dtype, Tensors] = field(
        default_factory=WeakValueDictionary, init=False, repr=False
    )

    def tensors_as(self, dtype: torch.dtype | None) -> Tensors:
        """Return the tensors without gradients, floating ones in a precision if one is given.

        The result is shared while anyone refers to it; its memory is freed when nobody does.
        """
        if dtype is None:
            return Tensors((name, tensor.detach()) for name, tensor in self.tensors.items())
        found = self._in_precision.get(dtype)
        if found is None:
            found = Tensors((name, as_floating(tensor.detach(), dtype)) for name, tensor in self.tensors.items())
            self._in_precision[dtype] = found
        return found

    def run(self, inputs: list[Tensor], dtype: torch.dtype | None = None) -> list[Tensor]:
        """Run the graph on other inputs, in another precision if one is given."""
        if dtype is None:
            return run(self.graph, self.tensors, inputs)
        return run(self.graph, self.tensors_as(dtype), as_floating(inputs, dtype), None, dtype)

    def on(self, device: str | torch.device | None) -> Captured:
        """Return the same with all of its tensors on a device; ``None`` leaves them where they are."""
        if device is None:
            return self
        tensors = {name: tensor.detach().to(device) for name, tensor in self.tensors.items()}
        return replace(self, tensors=tensors, example=[t.to(device) for t in self.example])

    def first_samples(self, size: int) -> Captured:
        """Return the same with fewer samples in its example."""
        return replace(self, example=self.at_batch(size))

    def at_batch(self, size: int) -> list[Tensor]:
        """Return the example cut to a batch size (as captured, if the graph has a fixed batch)."""
        if self.graph.batch != "dynamic":
            return self.example
        return [t[:size] if t.ndim else t for t in self.example]


class FlatModel(nn.Module):
    """The user's model with tensors in and a tuple of floating tensors out."""

    def __init__(self, model: nn.Module, inputs: ModelInputs) -> None:
        super().__init__()
        self.add_module(_PREFIX, model)
        self.inputs = inputs
        self.names: list[str] = []

    def forward(self, *flat: Tensor) -> tuple[Tensor, ...]:
        """Rebuild the call, run it, and flatten its outputs."""
        supply = iter(flat)
        args = [next(supply) if isinstance(a, Tensor) else a for a in self.inputs.args]
        kwargs = {k: next(supply) if isinstance(v, Tensor) else v for k, v in self.inputs.kwargs.items()}
        result = getattr(self, _PREFIX)(*args, **kwargs)
        found = tensors_in(result)
        for name, tensor in tensors_in(result, wanted=Tensor.is_complex):
            raise CaptureError(
                f"Expected real outputs, but {name} is {str(tensor.dtype)[6:]}. Return torch.view_as_real "
                "of it, or its real and imaginary parts."
            )
        self.names = numbered((name for name, _ in found), plain_first=True)
        return tuple(tensor for _, tensor in found)


def tensors_in(
    value: Any, name: str = "", *, wanted: Callable[[Tensor], bool] = Tensor.is_floating_point
) -> list[tuple[str, Tensor]]:
    """Return the floating tensors in a model's output, by name; caches and other objects are left out.

    >>> [name for name, _ in tensors_in({"a": torch.ones(1), "b": [torch.ones(2), None, torch.tensor([1])]})]
    ['a', 'b.0']
    """
    if isinstance(value, Tensor):
        return [(name or "output", value)] if wanted(value) else []
    if isinstance(value, Mapping):
        items: list[tuple[str, Any]] = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, tuple | list):
        fields = getattr(value, "_fields", None) or range(len(value))
        items = [(str(k), v) for k, v in zip(fields, value, strict=True)]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        items = [(f.name, getattr(value, f.name)) for f in dataclasses.fields(value)]
    else:
        return []
    return [pair for key, item in items for pair in tensors_in(item, f"{name}.{key}" if name else key, wanted=wanted)]


def capture(
    model: nn.Module, inputs: ModelInputs, *, elsewhere: bool = True, known: Captured | None = None
) -> Captured:
    """Capture a model in evaluation mode; it is not changed, and its compiled parts run as written.

    Every run starts from the model's original state: what an earlier run left behind (a counter, a table made on the
    first call) is undone before the next.

    Args:
        model: the model.
        inputs: example arguments, batched along axis 0.
        elsewhere: compare graph and model on all of the example and on inputs unlike it, with gradients and without;
            certified results need it. If not, they are compared at one sample.
        known: the same model, captured before and compared at one sample; its graph is taken if it holds here.

    Raises:
        InputError: if the model does not run on these inputs.
        CaptureError: if it returns no floating tensor, is not a function of its input, or no front end can record it.
        NonFiniteError: if a buffer it uses contains NaN or infinity (a mask may contain minus infinity).
    """
    refuse_quantized(model)
    inputs = _without_cache(model, inputs)
    with (
        _without_garbage_collection(),
        untouched(model),
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),  # attention as a formula
        compiled_parts_as_written(),
    ):
        evaluating(model)
        flat = FlatModel(model, inputs)
        flat.training = False
        example = [v for v in (*inputs.args, *inputs.kwargs.values()) if isinstance(v, Tensor)]
        names = _input_names(model, inputs)
        runs = RepeatedRuns(model, flat)
        ran = _eager(runs, example, whole=elsewhere)
        if not ran.outputs:
            raise CaptureError(
                "The model returns no floating-point tensor, so it has no Lipschitz constant. Return the "
                "logits or features, not indices, strings or None."
            )
        if any(o.layout is not torch.strided for o in ran.outputs):
            raise CaptureError("The model returns a sparse tensor. Return a dense one, with .to_dense().")
        runs.require_function(example)
        if known is not None and _holds(runs, known, example, ran):
            return replace(known, example=_doubled(example) or example)
        graph, tensors, example = _first_that_works(runs, example, ran, elsewhere=elsewhere)
        nodes = (replace(n, owner=_strip(n.owner), target=_strip(n.target)) for n in graph.nodes)
        graph = replace(graph, nodes=tuple(map(_stabilized, nodes)), output_names=tuple(runs.flat.names))
        tensors = {_strip(name): tensor for name, tensor in tensors.items()}
        _require_finite_buffers(graph, tensors)
        tensors = {k: v.clone() if v.is_inference() else v for k, v in tensors.items()}
    return Captured(_with_input_names(graph, names), tensors, example, names)


@contextlib.contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Disable the garbage collector, which visits all objects: export creates millions, and most of them survive."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def compiled_parts_as_written() -> contextlib.AbstractContextManager[Any]:
    """Run compiled functions as they are written; there are none as long as torch's compiler is not loaded."""
    return torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()


class _Ran(NamedTuple):
    """The outputs of the model, and the inputs they were computed from."""

    inputs: list[Tensor]
    outputs: tuple[Tensor, ...]


def _eager(runs: RepeatedRuns, example: list[Tensor], *, whole: bool) -> _Ran:
    """Run the model once, on the example or its first sample, with a clear error if it does not accept the input."""
    if not whole and _doubled(example) is not None:
        one = _first(example)
        with contextlib.suppress(Exception):  # a model may not accept a single sample
            return _Ran(one, runs.run(one))
    try:
        return _Ran(example, runs.run(example))
    except CaptureError:
        raise
    except (Exception, SystemExit) as error:
        shapes = ", ".join(f"{tuple(t.shape)} {str(t.dtype).removeprefix('torch.')}" for t in example)
        raise InputError(
            own_exception(error, shapes)
            or f"The model failed on an input of shape {shapes} with {type(error).__name__}: {error}. "
            "Pass an input of the right shape and dtype (data=..., or --input 3,224,224)."
        ) from error


def _holds(runs: RepeatedRuns, known: Captured, example: list[Tensor], ran: _Ran) -> bool:
    """Return whether a graph that was compared with its model at one sample holds for a whole example and elsewhere."""
    given = _doubled(example)
    if given is None or known.graph.batch != "dynamic":
        return False
    try:
        _verify(runs, known.graph, known.tensors, given, ran, dynamic=True, whole=True)
        return _holds_elsewhere(runs, known.graph, known.tensors, given)
    except Exception:  # whatever is wrong with it, it is captured anew
        return False


def _first_that_works(
    runs: RepeatedRuns, example: list[Tensor], ran: _Ran, *, elsewhere: bool
) -> tuple[Graph, dict[str, Tensor], list[Tensor]]:
    """Try two recordings, export with a free batch size, export as is, one recording; the graph must match the model.

    Export cannot create tables that a model makes on its first call, so the model is first run on one sample.
    """
    failures: list[str] = []
    doubled = _doubled(example)
    attempts: list[tuple[str, list[Tensor]]] = [("export", example), ("dispatch", example)]
    if doubled is not None:
        attempts.insert(0, ("dynamic", doubled))
        if not runs.moved and may_be_recorded(runs.model, doubled):
            attempts.insert(0, ("recording", doubled))
    if runs.moved:
        attempts = [(f"{before}{how}", given) for how, given in attempts for before in ("warm ", "")]
    for how, given in attempts:
        dynamic = how.endswith(("dynamic", "recording"))
        try:
            with runs.state():
                if how.startswith("warm"):
                    runs.flat(*copies(_first(given) if dynamic else given))
                if how == "recording":
                    graph, tensors = graph_of_two_recordings(runs.flat, given)
                elif how.endswith("dispatch"):
                    reason = failures[-1] if failures else ""
                    graph, tensors = record_graph(runs.flat, given)
                    graph = replace(graph, notes=(*graph.notes, RECORDED_NOTE.format(reason)))
                else:
                    with sdpa_kernel(_ANY_ATTENTION):  # the graph is the same, and found sooner
                        graph, tensors = export_graph(runs.flat, tuple(given), dynamic=dynamic)
            _verify(runs, graph, tensors, given, ran, dynamic=dynamic, whole=elsewhere)
            if elsewhere and not _holds_elsewhere(runs, graph, tensors, given):
                if not how.endswith("dispatch"):
                    raise CaptureError("The captured graph does not reproduce the model on other inputs.")
                graph = replace(with_unknown_outputs(graph), notes=(*graph.notes, ELSEWHERE_NOTE))
        except Exception as error:  # any failure of a front end means: try the next one
            failures.append(f"{how}: {type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}")
            continue
        return graph, tensors, given
    runs.refuse_difference(example)
    raise CaptureError("The model could not be captured as a graph:\n  " + "\n  ".join(failures))


def _doubled(example: list[Tensor]) -> list[Tensor] | None:
    """Return the example with a batch of at least two, which export needs to leave its size free."""
    sizes = {t.shape[0] for t in example if t.ndim}
    if len(sizes) != 1 or 0 in sizes:
        return None
    if sizes != {1}:
        return example
    return [torch.cat([t, t]) if t.ndim and t.shape[0] == 1 else t for t in example]


def _first(given: list[Tensor]) -> list[Tensor]:
    """Return the first sample."""
    return [t[:1] if t.ndim else t for t in given]


def _verify(
    runs: RepeatedRuns,
    graph: Graph,
    tensors: dict[str, Tensor],
    given: list[Tensor],
    ran: _Ran,
    *,
    dynamic: bool,
    whole: bool,
) -> None:
    """Check that the graph reproduces the model where it ran; if ``whole``, on the whole example and at other sizes.

    If ``whole``, also with gradients recorded and in inference mode, since a forward may depend on either.
    """
    tried = [(ran.inputs if dynamic and not whole else given, MODES[0])]
    if dynamic and whole:
        size = next(t.shape[0] for t in given if t.ndim)
        if any(n.target and n.shape is not None and n.shape[:1] == (size,) for n in graph):
            # A table may have been made for this batch size. One sample would broadcast against it; several do not.
            some = [0, 1] if size != 2 else [0, 1, 0]
            tried.append(([t[some] if t.ndim else t for t in given], MODES[0]))
    if whole:
        one = _first(given) if dynamic else given
        tried += [(one, mode) for mode in MODES[1:]]
    ours: dict[int, Sequence[Tensor]] = {}  # the graph gives the same in every mode
    for inputs, mode in tried:
        theirs = ran.outputs if mode is MODES[0] and inputs is ran.inputs else runs.run(inputs, mode=mode)
        if id(inputs) not in ours:
            ours[id(inputs)] = run(graph, tensors, inputs)
        if not are_alike(ours[id(inputs)], theirs):
            raise CaptureError("The captured graph does not reproduce the model.")


def are_alike(ours: Sequence[Tensor], theirs: Sequence[Tensor]) -> bool:
    """Return whether the outputs of graph and model agree up to rounding."""
    return all(a.shape == b.shape and bool(_isclose(a, b).all()) for a, b in zip(ours, theirs, strict=True))


def _isclose(ours: Tensor, theirs: Tensor) -> Tensor:
    """Return entry by entry whether two outputs agree, relative to the largest entry of their sample."""
    if ours.ndim < 2 or not ours.numel():
        return torch.isclose(ours, theirs, rtol=1e-3, atol=1e-30, equal_nan=True)
    wide = torch.promote_types(theirs.dtype, torch.float32)
    a, b = ours.to(wide).flatten(1), theirs.to(wide).flatten(1)
    scale = b.abs().nan_to_num(0, 0, 0).amax(1, keepdim=True).clamp_min(1e-30)
    return torch.isclose(a / scale, b / scale, rtol=1e-3, atol=1e-4, equal_nan=True)


def _holds_elsewhere(runs: RepeatedRuns, graph: Graph, tensors: dict[str, Tensor], given: list[Tensor]) -> bool:
    """Return whether the graph reproduces the model on inputs unlike the example, where the model runs.

    A forward may behave differently while it is exported, and still agree at the example.
    """
    numbers = sum(t[0].numel() if t.ndim and len(t) else 1 for t in given)
    probes = number_of_probes(given)
    if graph.batch == "dynamic" and numbers * probes <= AT_ONCE:
        many = [t[torch.arange(probes) % len(t)] if t.ndim else t for t in given]
        if _agreement(runs, graph, tensors, many) is True:
            return True
    return _agreement(runs, graph, tensors, given) is not False


def _agreement(runs: RepeatedRuns, graph: Graph, tensors: dict[str, Tensor], example: Sequence[Tensor]) -> bool | None:
    """Return whether graph and model agree on inputs unlike an example; ``None`` if the model runs on none of them."""
    agreed = None
    for inputs in unrelated(example):
        try:
            theirs = runs.run(inputs)
        except Exception:  # these inputs are ours: a model need not run on them
            continue
        if not are_alike(run(graph, tensors, copies(inputs)), theirs):
            return False
        agreed = True
    return agreed


def _require_finite_buffers(graph: Graph, tensors: dict[str, Tensor]) -> None:
    """Raise if a buffer that is used is not finite, except for the minus infinity of masks."""
    for node in graph:
        held = tensors.get(node.target) if node.op == "buffer" else None
        if held is None or not held.is_floating_point():
            continue
        plain = held.detach().float() if held.element_size() == 1 else held.detach()
        count = int((plain.isnan() | plain.isposinf()).sum())
        if count:
            raise NonFiniteError(
                f"Expected finite weights, but the buffer {node.target} has {count} NaN or infinite "
                f"entries of {held.numel()}. {USE_FINITE}"
            )


def _stabilized(node: Node) -> Node:
    """Return a node with its stabilizer written out, if it is an RMSNorm without one: torch uses a machine epsilon.

    It is that of the dtype run in, half precision being computed in float32. Without this, the same graph run in
    float64 would be another function.
    """
    given = node.args[3] if len(node.args) > 3 else dict(node.kwargs).get("eps")
    if node.op not in _RMS_NORMS or given is not None:
        return node
    eps = torch.finfo(torch.float64 if node.dtype == "float64" else torch.float32).eps
    kwargs = dict(node.kwargs)
    weight = node.args[2] if len(node.args) > 2 else kwargs.pop("weight", None)
    kwargs.pop("eps", None)
    return replace(node, args=(*node.args[:2], weight, eps), kwargs=tuple(sorted(kwargs.items())))


def _with_input_names(graph: Graph, names: list[str]) -> Graph:
    """Rename the inputs of a graph to the names in the model's forward."""
    inputs = [node.name for node in graph if node.op == "input"]
    taken = {node.name for node in graph} - set(inputs)
    if len(inputs) != len(names) or len(set(names)) != len(names):
        return graph
    new = {old: name if name not in taken else f"{name}_input" for old, name in zip(inputs, names, strict=True)}
    if taken & set(new.values()) or len(set(new.values())) != len(new):
        return graph

    def named(node: Node) -> Node:
        if node.name not in new and new.keys().isdisjoint(node.inputs()):
            return node
        args, kwargs = map_refs((node.args, node.kwargs), lambda ref: Ref(new.get(ref.name, ref.name)), into=tuple)
        return replace(node, name=new.get(node.name, node.name), args=args, kwargs=kwargs)

    return replace(graph, nodes=tuple(named(node) for node in graph.nodes))


def _strip(name: str) -> str:
    """Remove the name of our wrapper's one submodule."""
    return "" if name == _PREFIX else name.removeprefix(f"{_PREFIX}.")


def _input_names(model: nn.Module, inputs: ModelInputs) -> list[str]:
    """Return a name for each tensor input."""
    try:
        parameters = list(inspect.signature(model.forward).parameters)
    except (TypeError, ValueError):
        parameters = []
    names = []
    for i, value in enumerate(inputs.args):
        if isinstance(value, Tensor):
            names.append(parameters[i] if i < len(parameters) else f"input{i}")
    return names + [k for k, v in inputs.kwargs.items() if isinstance(v, Tensor)]


def _without_cache(model: nn.Module, inputs: ModelInputs) -> ModelInputs:
    """Ask transformers models for their plain output, without a key-value cache."""
    keywords = signature_of(model).keywords
    if hasattr(model, "config") and "use_cache" in keywords and "use_cache" not in inputs.kwargs:
        return replace(inputs, kwargs={**inputs.kwargs, "use_cache": False})
    return inputs
