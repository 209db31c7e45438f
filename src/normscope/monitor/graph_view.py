"""A model read from its captured graph: layers and normalizers wherever they are computed, also outside of modules."""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from normscope.analysis.context import uses_batch_statistics
from normscope.analysis.layers import before_padding, fixed_normalization, layer_names
from normscope.core.errors import CaptureError, InputError, listed
from normscope.core.names import numbered
from normscope.doctor.probe import logit_spread
from normscope.graph.capture import Captured, capture, tensors_in
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs, first_samples
from normscope.graph.interpreter import run
from normscope.graph.ir import Node
from normscope.graph.modes import has_batch_norm, with_batch_statistics
from normscope.graph.sample_coupling import where_samples_meet
from normscope.graph.second_derivatives import TWICE
from normscope.monitor.view import (
    MapOf,
    MonitoredLayer,
    MonitoredNormalizer,
    ProbePass,
    View,
    layout_difference,
    linear_map,
    tensor_layout,
    without_labels,
)
from normscope.operators.expression import Expr, LinearOp, evaluate
from normscope.operators.linear_map import LinearMap
from normscope.operators.normalizer import acts_on_weights
from normscope.operators.program import Program, build_program
from normscope.operators.site import Site
from normscope.operators.survey import activation_inputs

#: Samples the graph is captured on, where its batch size is free.
FEW = 2
#: The operation whose derivatives are quicker where channels are the last axis in memory.
CONVOLUTION = "aten.conv2d.default"


@dataclass(eq=False)
class GraphView(View):
    """A model read from its graph. The model's own code is run only to check that the graph is still valid.

    Raises:
        InputError: if the model does not run on the probe.
        CaptureError: if no graph could be captured.
    """

    def __post_init__(self) -> None:
        self._comparable = True
        self._capture()

    def _capture(self) -> None:
        """Capture the model and find its layers, normalizers and activations; until that succeeds there is no graph."""
        self._is_captured = False
        self.captured, self._given = self._capture_with_or_without_labels()
        graph = self.captured.graph
        dynamic = graph.batch == "dynamic"
        self.inputs = self._given.tensors() if dynamic else self.captured.example
        if self.mode == "batch" and has_batch_norm(graph) and self.arguments.batch < 2:
            raise InputError(
                "BatchNorm uses the statistics of the probe batch, and one sample has none. Use a probe of at least "
                "two samples, or mode='running'."
            )
        self.graph = with_batch_statistics(graph) if self.mode == "batch" else graph
        self._channels_last = any(node.op == CONVOLUTION for node in self.graph)
        self.notes = tuple(graph.notes)
        self._names = {node.target for node in graph if node.op == "parameter"}
        self._layout = tensor_layout(self.model)
        self._example = self._reference()
        self._program: Program | None = None
        program = self._current_program()
        names = numbered([s.owner or s.node for s in program.sites])  # as ``analyze`` gives them
        self._sites = {s.node: name for s, name in zip(program.sites, names, strict=True)}
        self._observed = _observed_nodes(self.captured, program, self._sites)
        self._is_captured = True

    def _capture_with_or_without_labels(self) -> tuple[Captured, ModelInputs]:
        """Capture the model, with labels if it computes its own loss; return the inputs of the graph, too."""
        inputs = self.arguments
        if self.labels is None:
            return _capture_smallest(self.model, inputs), inputs
        if self.loss is None and "labels" in inputs.kwargs:
            with contextlib.suppress(CaptureError, InputError):
                captured = _capture_smallest(self.model, inputs)
                if "loss" in captured.graph.output_names:
                    return captured, inputs
        inputs = without_labels(inputs)
        return _capture_smallest(self.model, inputs), inputs

    def _reference(self) -> list[Tensor]:
        """Return the inputs to build the program with: one sample, or all if samples depend on each other."""
        single = self.captured.at_batch(1)
        coupled = self.captured.graph.batch != "dynamic" or where_samples_meet(self.captured)
        program = None if coupled else build_program(self.captured.graph, self._current_tensors(), single)
        return self.captured.example if program is None or uses_batch_statistics(program) else single

    def _current_tensors(self) -> dict[str, Tensor]:
        """Return the current parameters, buffers and constants by their names in the graph.

        Buffers are copies: the graph may write to them, as the model does.
        """
        tensors = dict(self.captured.tensors)
        live = {n: p.detach() for n, p in self.model.named_parameters(remove_duplicate=False) if n in tensors}
        buffers = self.model.named_buffers(remove_duplicate=False)
        live.update((n, b.detach().clone()) for n, b in buffers if n in tensors)
        gone = [n for n in tensors if n in self._layout and n not in live]
        if gone:
            raise CaptureError(f"The captured graph needs {listed(gone)}, which the model no longer has.")
        return tensors | live

    def _current_program(self) -> Program:
        if self._program is None:
            self._program = build_program(self.captured.graph, self._current_tensors(), self._example)
        return self._program

    def refresh(self) -> str:
        """Forget the weights, which have changed, and capture the model again if it has become a different one.

        Its parameters and buffers are compared, and its outputs on the first samples of the probe: a graph is valid
        only for the branches and settings at the time it was captured.
        """
        self._program = None
        changed = self._difference() if self._is_captured else "it could not be captured"
        if not changed and self._comparable and not self._is_still_valid():
            changed = "it computes something else on the probe"
        if changed:
            try:
                self._capture()
            except Exception as error:
                raise CaptureError(
                    f"The model has changed ({changed}) and is not measured because it cannot be captured again: "
                    f"{error}"
                ) from error
            self._comparable = self._is_still_valid()  # otherwise it would be captured again at every probe
        return changed

    def _difference(self) -> str:
        """Return how parameters and buffers differ from the captured ones; unused buffers may have any size."""
        now = tensor_layout(self.model)
        used = {*self._names, *(node.target for node in self.captured.graph)}
        free = {n for n, _ in self.model.named_buffers(remove_duplicate=False) if n not in used}
        return layout_difference(self._layout, {n: self._layout.get(n, v) if n in free else v for n, v in now.items()})

    def _is_still_valid(self) -> bool:
        """Return whether the graph still computes what the model does, on a few samples if the batch size is free."""
        given, inputs = self._given, self.inputs
        if self.captured.graph.batch == "dynamic":
            given = first_samples(given, FEW)
            inputs = given.tensors()
        # A model that writes to its parameters was refused when it was captured.
        guard = untouched(self.model, *given.tensors(), parameters=False)
        with guard, torch.no_grad(), torch.compiler.set_stance("force_eager"):
            self.model.eval()
            theirs = {name: value.clone() for name, value in tensors_in(self.model(*given.args, **given.kwargs))}
        found = run(self.captured.graph, self._current_tensors(), [t.clone() for t in inputs])
        ours = dict(zip(self.captured.graph.output_names, found, strict=True))
        # A graph is captured without the tensors a model returns for its next call (a cache).
        return ours.keys() <= theirs.keys() and all(_close(value, theirs[name]) for name, value in ours.items())

    def parameters(self) -> dict[str, Tensor]:
        """Return the current parameters of the graph, detached; a tied one once, under its first name."""
        first = _first_names(self.model)
        used = {first[name] for name in self._names if name in first}
        return {name: p.detach() for name, p in self.model.named_parameters() if name in used}

    def copy_state(self) -> dict[str, Tensor]:
        """Return copies of the parameters, named as in :meth:`parameters`, and of the buffers."""
        live = {n: t for n, t in self._current_tensors().items() if n in self._layout and n not in self._names}
        return {n: t.clone() for n, t in (live | self.parameters()).items()}

    def layers(self) -> tuple[MonitoredLayer, ...]:
        """Return the linear layers in the order of the network, each with the fixed normalization after it."""
        program = self._current_program()
        after, found = fixed_normalization(program), []
        parameters, first = self.parameters(), _first_names(self.model)
        for expr, name in zip(program.layers, layer_names(program), strict=True):
            if expr.op is None:
                continue
            node, out = after.get(expr.id, ("", None))
            source, weight = before_padding(expr), _parameter_of(expr.op, parameters, first)
            folded = None if out is None else _map_between(source, out)
            axis = _output_axis(expr.op, parameters.get(weight))
            found.append(MonitoredLayer(name, weight, _map_between(source, expr), folded, node, axis))
        return tuple(found)

    def normalizers(self) -> tuple[MonitoredNormalizer, ...]:
        """Return the normalizers, those of weights among them, in the order of the network."""
        return tuple(
            MonitoredNormalizer(self._sites.get(s.node, s.owner or s.node), s) for s in self._current_program().sites
        )

    def run_probe(self, *, create_graph: bool = False, **wanted: Any) -> ProbePass:
        """Run over the probe batch.

        If the gradient is to be differentiated again, images have channels last in memory: products with the Hessian
        of a ResNet-20 then take a tenth less time. A graph that fails with that layout (a ``view`` may need the other
        one) is run without it from then on.
        """
        if create_graph and self._channels_last:
            try:
                return super().run_probe(create_graph=True, **wanted)
            except RuntimeError:
                self._channels_last = False
        return super().run_probe(create_graph=create_graph, **wanted)

    @contextlib.contextmanager
    def _running(
        self, leaves: dict[str, Tensor], buffers: dict[str, Tensor], record: ProbePass | None, *, create_graph: bool
    ) -> Iterator[dict[str, Tensor]]:
        first = _first_names(self.model)
        given = {name: leaves[first[name]] for name in self._names if name in first}
        given |= {name: value.clone() for name, value in buffers.items()}  # the graph may write to them

        def visit(node: Node, value: Any, values: Mapping[str, Any]) -> None:
            assert record is not None
            if isinstance(value, Tensor) and value.ndim:
                for name, site in self._observed.get(node.name, ()):
                    record.add(name, value, site)
            with torch.no_grad():
                distance = logit_spread(node, values)
            if distance is not None:
                place = node.owner or node.name
                record.logits[place] = max(distance, record.logits.get(place, 0.0))

        with sdpa_kernel(SDPBackend.MATH):
            inputs = [t.clone() for t in self.inputs]  # an operation may overwrite its input
            if create_graph and self._channels_last:
                inputs = [_channels_last(t) for t in inputs]
            functions = TWICE if create_graph else None
            found = run(
                self.graph, self._current_tensors() | given, inputs, visit if record else None, functions=functions
            )
            names = self.graph.output_names or tuple(str(i) for i in range(len(found)))
            yield dict(zip(names, found, strict=True))


def _channels_last(image: Tensor) -> Tensor:
    """Return a batch of images on the processor with channels last in memory, anything else as it is."""
    images = image.ndim == 4 and image.device.type == "cpu"
    return image.contiguous(memory_format=torch.channels_last) if images else image


def _close(a: Tensor, b: Tensor) -> bool:
    """Return whether two outputs are equal up to rounding."""
    if a.shape != b.shape:
        return False
    scale = float(b.abs().nan_to_num(0.0, 0.0, 0.0).max()) if b.numel() else 0.0
    return torch.allclose(a, b, rtol=1e-3, atol=1e-4 * scale, equal_nan=True)


def _first_names(model: nn.Module) -> dict[str, str]:
    """Return the first name of every parameter by each of its names; tied parameters have several."""
    first: dict[int, str] = {}
    return {name: first.setdefault(id(p), name) for name, p in model.named_parameters(remove_duplicate=False)}


def _capture_smallest(model: nn.Module, inputs: ModelInputs) -> Captured:
    """Capture on the first samples, or on all of them if the batch size is part of the graph."""
    if inputs.batch > FEW:
        try:
            few = capture(model, first_samples(inputs, FEW))
        except (CaptureError, InputError):  # it needs its own batch size
            few = None
        if few is not None and few.graph.batch == "dynamic":
            return few
    return capture(model, inputs)


def _observed_nodes(
    captured: Captured, program: Program, sites: Mapping[str, str]
) -> dict[str, list[tuple[str, Site | None]]]:
    """Return for each graph node the normalizers and activations that read it."""
    watch: dict[str, list[tuple[str, Site | None]]] = {}
    for site in program.sites:
        if site.shape and not acts_on_weights(site):
            watch.setdefault(site.source, []).append((sites[site.node], site))
    reads = activation_inputs(captured, program)
    owners = {a.atom.name: a.atom.owner for a in program.atoms}
    taken = set(sites.values())
    for name, source in zip(numbered([owners.get(n) or n for n in reads]), reads.values(), strict=True):
        watch.setdefault(source, []).append((f"{name}:activation" if name in taken else name, None))
    return watch


def _parameter_of(op: LinearOp, parameters: Mapping[str, Tensor], first: Mapping[str, str]) -> str:
    """Return the parameter behind the weight of a layer: the recorded one, unless that is a bias (as in ``addmm``)."""
    size = op.data["weight"].numel()
    name = first.get(op.weight_name, op.weight_name)
    recorded = parameters.get(name)
    if recorded is None or recorded.numel() == size or not op.owner:
        return name
    near = [n for n, p in parameters.items() if n.startswith(f"{op.owner}.") and p.numel() == size]
    return near[0] if len(near) == 1 else name


def _output_axis(op: LinearOp, parameter: Tensor | None) -> int:
    """Return the axis of a parameter that counts outputs: the second of transposed convolutions and of ``x @ W``."""
    weight: Tensor = op.data["weight"]
    if op.kind == "convolution":
        return 1 if op.data.get("transposed") else 0
    if parameter is None or parameter.ndim != 2 or weight.ndim != 2:
        return 0
    turned = weight.shape == parameter.shape[::-1] and weight.stride() == parameter.stride()[::-1]
    return 1 if turned and weight.stride() != parameter.stride() else 0


def _map_between(source: Expr, target: Expr) -> MapOf:
    """Return a linear map of the program in a given precision; a matrix applied to tokens stays that matrix."""

    def build(dtype: torch.dtype) -> LinearMap:
        matrix = _matrix(source, target)
        if matrix is not None:
            return LinearMap.from_matrix(matrix.to(dtype))
        return linear_map(evaluate(source, target), source.shape, target.shape, dtype, _device(target))

    return build


def _matrix(source: Expr, target: Expr) -> Tensor | None:
    """Return the matrix of a segment of one linear layer and perhaps a row scaling after it, otherwise ``None``."""
    scale: Tensor | None = None
    expr = target
    while expr.id != source.id:
        op = expr.op
        if op is None or len(expr.inputs) != 1:
            return None
        if op.kind == "diagonal" and scale is None:
            scale = op.data["scale"]
            last = expr.shape[-1]
            if scale.numel() != 1 and (scale.numel() != last or (scale.ndim and scale.shape[-1] != last)):
                return None
        elif op.kind == "matrix" and op.data["axis"] == -1 and op.data["weight"].ndim == 2:
            if expr.inputs[0].id != source.id:
                return None
            weight: Tensor = op.data["weight"]
            return weight if scale is None else scale.reshape(-1, 1) * weight.to(scale)
        else:
            return None
        expr = expr.inputs[0]
    return None


def _device(expr: Expr) -> torch.device | None:
    while expr.op is not None:
        if isinstance(weight := expr.op.data.get("weight"), Tensor):
            return weight.device
        expr = expr.inputs[0]
    return None
