"""A model as quantities see it: its layers and normalizers with their current values, and passes over the probe."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from normscope.core.errors import listed
from normscope.graph.inputs import ModelInputs
from normscope.graph.objective import LossFunction, probe_loss
from normscope.operators.linear_map import LinearMap
from normscope.operators.site import Site
from normscope.operators.survey import _channel_axis as channel_axis
from normscope.operators.survey import group_floor

MapOf = Callable[[torch.dtype], LinearMap]


@dataclass(frozen=True, eq=False)
class MonitoredLayer:
    """A linear layer as it acts in the network, with its current weights."""

    name: str  #: as in the result of ``analyze``
    parameter: str  #: the trained parameter behind its weight; with weight normalization, the directions
    map: MapOf  #: its linear map, without bias, in a given precision
    folded: MapOf | None = None  #: the same followed by the fixed normalization directly after it, if there is one
    normalizer: str = ""  #: the graph node of that normalization
    output_axis: int = 0  #: the axis of the parameter that counts outputs


@dataclass(frozen=True, eq=False)
class MonitoredNormalizer:
    """A normalizer with its current parameters and statistics."""

    name: str  #: as in the result of ``analyze``
    site: Site  #: its place in the network, and what it divides by


@dataclass(eq=False)
class ProbePass:
    """What one pass over the probe batch showed."""

    outputs: dict[str, Tensor] = field(default_factory=dict)  #: the outputs of the model, by name
    loss: Tensor | None = None  #: the loss, if there is one
    #: per-channel variance before each normalizer, by its name
    variances: dict[str, Tensor] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)  #: per-channel mean there
    #: largest distance of an attention logit from the middle of its row, by layer
    logits: dict[str, float] = field(default_factory=dict)
    #: smallest standard deviation of each group before normalizers that use the statistics of their input
    floors: dict[str, Tensor] = field(default_factory=dict)
    activations: dict[str, Tensor] = field(default_factory=dict)  #: per-channel variance before each activation
    #: gradients of the loss, by parameter; empty unless they were requested
    gradients: dict[str, Tensor] = field(default_factory=dict)
    #: the parameters to differentiate the gradients by once more; empty unless their graph was requested
    leaves: dict[str, Tensor] = field(default_factory=dict)

    def add(self, name: str, x: Tensor, site: Site | None) -> None:
        """Add the statistics of the input of a normalizer or, if ``site`` is ``None``, of an activation."""
        mean, variance = channel_moments(x, channel_axis(x, site))
        if site is None:
            self.activations[name] = variance
            return
        self.means[name], self.variances[name] = mean, variance
        if site.spread is not None:
            self.floors[name] = group_floor(x.detach(), site.spread, x.shape[0] / max(site.shape[0], 1))


@dataclass(eq=False)
class View(ABC):
    """A model and its probe batch, read from the captured graph or from modules."""

    model: nn.Module  #: the model, unwrapped; its parameters and buffers are read again in every pass
    arguments: ModelInputs  #: the probe batch as the model takes it
    labels: Tensor | None  #: its labels
    loss: LossFunction | None  #: the user's loss, if any
    mode: str  #: what BatchNorm does in the pass over the probe: ``batch`` as in training, or ``running``
    notes: tuple[str, ...] = field(init=False)  #: what a reader must know
    inputs: list[Tensor] = field(init=False)  #: the tensors of the probe batch

    @abstractmethod
    def refresh(self) -> str:
        """Forget the weights, which have changed. Return how the model itself differs, or an empty string."""

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """Return the current parameters that the probe reaches, detached, by name."""

    @abstractmethod
    def copy_state(self) -> dict[str, Tensor]:
        """Return copies of the parameters and buffers that the probe reaches, to measure this moment later."""

    @abstractmethod
    def layers(self) -> tuple[MonitoredLayer, ...]:
        """Return the linear layers in order."""

    @abstractmethod
    def normalizers(self) -> tuple[MonitoredNormalizer, ...]:
        """Return the normalizers in order."""

    @abstractmethod
    def _running(
        self, leaves: dict[str, Tensor], buffers: dict[str, Tensor], record: ProbePass | None, *, create_graph: bool
    ) -> AbstractContextManager[dict[str, Tensor]]:
        """Run the model with these parameters and buffers, record statistics, and yield the outputs by name."""

    def run_probe(
        self,
        *,
        gradient: bool = False,
        create_graph: bool = False,
        statistics: bool = True,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> ProbePass:
        """Run over the probe batch.

        Args:
            gradient: also differentiate the loss with respect to the trained parameters.
            create_graph: keep the graph of the gradient, so that it can be differentiated again.
            statistics: also collect variances.
            parameters: values to use instead of the current ones, also of buffers.
        """
        gradient = gradient or create_graph
        wanted = {name for name, p in self.model.named_parameters() if p.requires_grad and gradient}
        given = dict(parameters or {})
        point = {name: given.pop(name, p) for name, p in self.parameters().items()}
        leaves = {name: value.detach().requires_grad_(name in wanted) for name, value in point.items()}
        record = ProbePass(leaves=leaves if create_graph else {})
        running = self._running(leaves, given, record if statistics else None, create_graph=create_graph)
        with torch.set_grad_enabled(gradient), running as outputs:
            record.outputs = outputs
            record.loss = probe_loss(outputs, self.labels, self.loss)
            record.gradients = gradients_of(record.loss, leaves, create_graph=create_graph) if gradient else {}
        return record


def linear_map(
    function: Callable[[Tensor], Tensor],
    domain: tuple[int, ...],
    range_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> LinearMap:
    """Return the map of a linear torch function; its adjoint is recorded when it is first used.

    >>> linear_map(lambda x: 2 * x[1:], (3,), (2,), torch.float32).adjoint(torch.ones(2)).tolist()
    [0.0, 2.0, 2.0]
    """
    recorded: list[Callable[[Tensor], tuple[Tensor]]] = []

    def apply(x: Tensor) -> Tensor:
        with torch.no_grad():
            return function(x)

    def adjoint(y: Tensor) -> Tensor:
        if not recorded:
            recorded.append(torch.func.vjp(function, torch.zeros(domain, dtype=dtype, device=device))[1])
        return recorded[0](y)[0].detach()

    return LinearMap(apply, adjoint, domain, range_shape, dtype=dtype, device=device or "cpu")


def channel_moments(x: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance of every channel over all samples and positions.

    >>> [t.tolist() for t in channel_moments(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), 1)]
    [[2.0, 0.0], [1.0, 0.0]]
    """
    rest = [i for i in range(x.ndim) if i != axis % x.ndim]
    wide = x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()
    if not rest:
        return wide, torch.zeros(x.shape[0])
    return wide.mean(dim=rest), wide.var(dim=rest, correction=0)


def without_labels(inputs: ModelInputs) -> ModelInputs:
    """Return the arguments of a model without the labels, so that it does not compute its own loss."""
    return replace(inputs, kwargs={name: value for name, value in inputs.kwargs.items() if name != "labels"})


def gradients_of(loss: Tensor | None, leaves: Mapping[str, Tensor], *, create_graph: bool = False) -> dict[str, Tensor]:
    """Return the gradient of a loss with respect to leaves, without those it does not depend on.

    >>> w = torch.tensor([3.0], requires_grad=True)
    >>> gradients_of((w * w).sum(), {"w": w})["w"].tolist()
    [6.0]
    """
    if loss is None or not loss.requires_grad:
        return {}
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True, create_graph=create_graph)
    pairs = zip(wanted, found, strict=True)
    return {name: value if create_graph else value.detach() for name, value in pairs if value is not None}


#: By the name of a parameter or buffer: the first name of the same tensor, its shape, its dtype and its device.
TensorLayout = dict[str, tuple[str, tuple[int, ...], str, str]]


def tensor_layout(model: nn.Module) -> TensorLayout:
    """Return the parameters and buffers of a model under all of their names; tied ones share their first name.

    >>> tensor_layout(nn.Linear(2, 1, bias=False))
    {'weight': ('weight', (1, 2), 'torch.float32', 'cpu')}
    """
    first: dict[int, str] = {}
    held = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {n: (first.setdefault(id(t), n), tuple(t.shape), str(t.dtype), str(t.device)) for n, t in held}


def layout_difference(was: TensorLayout, now: TensorLayout) -> str:
    """Describe how two layouts differ; return an empty string if they do not.

    >>> layout_difference(tensor_layout(nn.Linear(2, 1)), tensor_layout(nn.Linear(3, 1, bias=False)))
    'it no longer has bias; weight differs'
    >>> layout_difference(tensor_layout(nn.Linear(2, 1)), tensor_layout(nn.Linear(2, 1)))
    ''
    """
    gone = [name for name in was if name not in now]
    new = [name for name in now if name not in was]
    other = [name for name in was if name in now and was[name] != now[name]]
    parts = (
        f"it no longer has {listed(gone)}" if gone else "",
        f"it has gained {listed(new)}" if new else "",
        f"{listed(other)} differ{'s' if len(other) == 1 else ''}" if other else "",
    )
    return "; ".join(part for part in parts if part)
