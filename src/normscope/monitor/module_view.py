"""A model read from its modules if there is no graph: layers and normalizers of torch's own classes only."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

from normscope.core.errors import CaptureError
from normscope.graph.capture import tensors_in
from normscope.graph.guard import untouched
from normscope.graph.second_derivatives import twice_differentiable
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
from normscope.operators.linear_map import LinearMap
from normscope.operators.normalizer import couples_samples, module_kind, normalizers
from normscope.operators.site import Site

NOTE = (
    "the model could not be captured as a graph, so only torch's own layers, normalizers and activations are measured; "
    "hand-written ones are not seen, and layers are not folded with the normalization after them"
)
ACTIVATIONS = (
    nn.ReLU, nn.LeakyReLU, nn.PReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Tanh,
    nn.Sigmoid, nn.Softplus, nn.Hardswish, nn.Hardtanh,
)  # fmt: skip
#: Names of the parameter behind a weight: plain, parametrized, or computed by a hook of torch's older functions.
WEIGHTS = ("weight", "parametrizations.weight.original1", "weight_orig", "weight_v")
#: Hooks that compute a weight from parameters when the module is called.
HOOKS = (SpectralNorm, WeightNorm, BasePruningMethod)
CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@dataclass(eq=False)
class ModuleView(View):
    """A model read from its modules, run under a guard with copies of its buffers."""

    reason: str = ""  #: why there is no graph, if known

    def __post_init__(self) -> None:
        if self.loss is not None and self.labels is not None:
            self.arguments = without_labels(self.arguments)
        self.inputs = self.arguments.tensors()
        self.notes = (f"{NOTE} ({self.reason})" if self.reason else NOTE,)
        self._shapes: dict[str, tuple[int, ...]] = {}
        self._layout = tensor_layout(self.model)
        self.run_probe()

    def refresh(self) -> str:
        """Find the shapes again if the modules have changed; no weights are kept."""
        changed = layout_difference(self._layout, tensor_layout(self.model))
        if changed:
            self.run_probe(statistics=False)
            self._layout = tensor_layout(self.model)
        return changed

    def parameters(self) -> dict[str, Tensor]:
        """Return the live parameters, detached, by name."""
        return {name: p.detach() for name, p in self.model.named_parameters()}

    def copy_state(self) -> dict[str, Tensor]:
        """Return copies of parameters and buffers."""
        held = (*self.model.named_parameters(), *self.model.named_buffers())
        return {name: t.detach().clone() for name, t in held}

    def layers(self) -> tuple[MonitoredLayer, ...]:
        """Return the linear layers and convolutions that the probe reached, in the order of the modules."""
        found = []
        for name, module in self.model.named_modules():
            shape = self._shapes.get(name)
            if shape is None or not isinstance(module, (nn.Linear, *CONVOLUTIONS)):
                continue
            own = dict(module.named_parameters())
            weight = next((n for n in own if n in WEIGHTS), "")
            weight = weight or next((n for n in own if n.startswith("parametrizations.weight.original")), "")
            found.append(MonitoredLayer(name, f"{name}.{weight}" if name else weight, _map_of(module, shape)))
        return tuple(found)

    def normalizers(self) -> tuple[MonitoredNormalizer, ...]:
        """Return the normalizers that the probe reached, in the order of the modules."""
        found = []
        for name, module in self.model.named_modules():
            shape = self._shapes.get(name)
            kind = module_kind(module)
            if shape is not None and kind is not None:
                found.append(MonitoredNormalizer(name, _site(name, kind, module, shape)))
        return tuple(found)

    @contextlib.contextmanager
    def _running(
        self, leaves: dict[str, Tensor], buffers: dict[str, Tensor], record: ProbePass | None, *, create_graph: bool
    ) -> Iterator[dict[str, Tensor]]:
        shapes: dict[str, tuple[int, ...]] = {}
        second = twice_differentiable(self.model) if create_graph else contextlib.nullcontext()
        with untouched(self.model, *self.inputs), second:  # hooks live as long as the pass
            held = {name: buffers.get(name, b).detach().clone() for name, b in self.model.named_buffers()}
            self._set_modes()
            for name, module in self.model.named_modules():
                if module_kind(module) or isinstance(module, (nn.Linear, *CONVOLUTIONS, *ACTIVATIONS)):
                    module.register_forward_pre_hook(self._hook(name, shapes, record))
            with torch.compiler.set_stance("force_eager"):
                result = torch.func.functional_call(
                    self.model, leaves | held, self.arguments.args, self.arguments.kwargs
                )
            self._shapes = shapes  # of the modules this pass reached, and no others
            yield dict(tensors_in(result))

    def _set_modes(self) -> None:
        """Set evaluation mode, except for BatchNorm in mode ``batch``: dropout is off, BatchNorm uses the probe."""
        self.model.eval()
        for module in self.model.modules():
            # SyncBatchNorm would wait for the other processes
            kind = module_kind(module)
            couples = kind is not None and couples_samples(kind)
            if self.mode == "batch" and couples and not isinstance(module, nn.SyncBatchNorm):
                module.train()

    def _hook(
        self, name: str, shapes: dict[str, tuple[int, ...]], record: ProbePass | None
    ) -> Callable[[nn.Module, tuple[Any, ...]], None]:
        """Return a hook that records the input shape, and the variance before a normalizer or activation."""

        def hook(module: nn.Module, given: tuple[Any, ...]) -> None:
            if not given or not isinstance(given[0], Tensor) or given[0].ndim == 0:
                return
            x = given[0].detach()
            shapes[name] = tuple(x.shape)
            kind = module_kind(module)
            if record is not None and isinstance(module, ACTIVATIONS):
                record.add(name, x, None)
            elif record is not None and kind is not None:
                record.add(name, x, _site(name, kind, module, tuple(x.shape)))

        return hook


def _site(name: str, kind: str, module: nn.Module, shape: tuple[int, ...]) -> Site:
    norm: Any = module
    divide = normalizers()[kind].module_spread
    assert divide is not None
    spread = divide(module, shape)
    gamma = weight_of(module)
    if getattr(norm, "running_var", None) is not None:
        running = (norm.running_mean.detach(), norm.running_var.detach())
        return Site(name, name, name, kind, None, gamma, None, running, spread.eps, shape)
    return Site(name, name, name, kind, spread, gamma, None, None, spread.eps, shape)


def weight_of(module: nn.Module) -> Tensor | None:
    """Return the weight of a module as it is in evaluation, detached, or ``None`` if it has none.

    Reading a parametrized weight runs its parametrization, which may change buffers: in training mode spectral
    normalization makes a step of its power iteration. Such changes are undone. A weight computed by a hook is that of
    the last forward pass until the hook is called.

    >>> layer = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
    >>> before = layer.parametrizations.weight[0]._u.clone()
    >>> weight_of(layer).shape, torch.equal(layer.parametrizations.weight[0]._u, before)
    (torch.Size([2, 3]), True)
    """
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, HOOKS)]
    if not hooks and not is_parametrized(module, "weight"):
        weight: Tensor | None = getattr(module, "weight", None)
        return None if weight is None else weight.detach()
    with untouched(module), torch.no_grad():
        module.eval()
        for hook in hooks:
            hook(module, ())
        found: Any = module.weight
        return torch.clone(found)


def _map_of(module: nn.Module, shape: tuple[int, ...]) -> MapOf:
    """Return the linear map of a layer on one sample of its input shape in the probe."""
    layer: Any = module

    def build(dtype: torch.dtype) -> LinearMap:
        weight = weight_of(module)
        if weight is None:
            raise CaptureError(f"Expected a {type(module).__name__} with a weight.")
        weight = weight.to(dtype)
        if isinstance(module, nn.Linear):
            return LinearMap.from_matrix(weight)
        size = shape[-(weight.ndim - 1) :]

        def apply(x: Tensor) -> Tensor:
            return layer._conv_forward(x.unsqueeze(0), weight, None).squeeze(0)

        with torch.no_grad():
            image = apply(torch.zeros(size, dtype=dtype, device=weight.device))
        return linear_map(apply, size, tuple(image.shape), dtype, weight.device)

    return build
