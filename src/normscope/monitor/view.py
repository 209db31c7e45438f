"""What quantities see of a model: its layers and normalizers with their live values, and one pass over the probe."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

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
class Layer:
    """A linear layer as it acts in the network, with the weights of this moment."""

    name: str  #: as in the result of ``analyze``
    parameter: str  #: the trained parameter behind its weight; of weight normalization the directions
    map: MapOf  #: the linear map it is, without bias, in a given precision
    folded: MapOf | None = None  #: the same followed by the fixed normalization right after it, if there is one
    normalizer: str = ""  #: the graph node of that normalization
    output_axis: int = 0  #: the axis of the parameter that counts outputs


@dataclass(frozen=True, eq=False)
class Normalizer:
    """A normalizer with the parameters and statistics of this moment."""

    name: str  #: as in the result of ``analyze``
    site: Site  #: where it stands and what it divides by


@dataclass(eq=False)
class Look:
    """One pass over the probe batch."""

    outputs: dict[str, Tensor] = field(default_factory=dict)  #: what the model gave, by name
    loss: Tensor | None = None  #: the loss, if there is one
    #: per-channel variance before each normalizer, by its name
    variances: dict[str, Tensor] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)  #: per-channel mean there
    #: largest distance of an attention logit from the middle of its row, by layer
    logits: dict[str, float] = field(default_factory=dict)
    #: least spread of each group before normalizers that use the statistics of their input
    floors: dict[str, Tensor] = field(default_factory=dict)
    activations: dict[str, Tensor] = field(default_factory=dict)  #: per-channel variance before each activation
    #: of the loss, by parameter; empty if they were not asked for
    gradients: dict[str, Tensor] = field(default_factory=dict)
    #: the parameters that gradients with a graph are functions of; empty unless such were asked for
    leaves: dict[str, Tensor] = field(default_factory=dict)

    def see(self, name: str, x: Tensor, site: Site | None) -> None:
        """Note the statistics of what a normalizer reads or, without one, an activation."""
        mean, variance = channel_moments(x, channel_axis(x, site))
        if site is None:
            self.activations[name] = variance
            return
        self.means[name], self.variances[name] = mean, variance
        if site.spread is not None:
            self.floors[name] = group_floor(x.detach(), site.spread, x.shape[0] / max(site.shape[0], 1))


class View(ABC):
    """A model and its probe batch; two kinds: by the captured graph, and by modules.

    Args:
        model: the model, unwrapped; its parameters and buffers are read anew at every look.
        arguments: the probe batch as the model takes it.
        labels: its labels.
        loss: the user's loss, if any.
        mode: what BatchNorm does in the pass over the probe: ``batch`` as in training, or ``running``.
    """

    notes: tuple[str, ...]
    inputs: list[Tensor]

    def __init__(
        self, model: nn.Module, arguments: ModelInputs, labels: Tensor | None, loss: LossFunction | None, mode: str
    ) -> None:
        self.model, self.arguments, self.labels, self.loss, self.mode = model, arguments, labels, loss, mode

    @abstractmethod
    def refresh(self) -> str:
        """Forget what was read of the weights: they have moved. Return what made it another model, if it is one."""

    @abstractmethod
    def parameters(self) -> dict[str, Tensor]:
        """Return the live parameters the probe reaches, detached, by name."""

    @abstractmethod
    def copied(self) -> dict[str, Tensor]:
        """Return copies of the parameters and buffers that the probe reaches, to look at this moment later."""

    @abstractmethod
    def layers(self) -> tuple[Layer, ...]:
        """Return the linear layers in order."""

    @abstractmethod
    def normalizers(self) -> tuple[Normalizer, ...]:
        """Return the normalizers in order."""

    @abstractmethod
    def _running(
        self, look: Look, leaves: dict[str, Tensor], buffers: dict[str, Tensor], *, curved: bool, statistics: bool
    ) -> AbstractContextManager[dict[str, Tensor]]:
        """Run the model with some parameters and buffers, note statistics in a look, and give the outputs by name."""

    def look(
        self,
        *,
        gradient: bool = False,
        curved: bool = False,
        statistics: bool = True,
        parameters: Mapping[str, Tensor] | None = None,
    ) -> Look:
        """Run over the probe batch.

        Args:
            gradient: also differentiate the loss with respect to the parameters that are trained.
            curved: keep the graph of the gradient, so that it can be differentiated again.
            statistics: also collect variances.
            parameters: values in the place of live ones, also of buffers.
        """
        slopes = gradient or curved
        wanted = {name for name, p in self.model.named_parameters() if p.requires_grad and slopes}
        given = dict(parameters or {})
        leaves = trained({n: given.pop(n, p) for n, p in self.parameters().items()}, wanted)
        look = Look(leaves=leaves if curved else {})
        running = self._running(look, leaves, given, curved=curved, statistics=statistics)
        with torch.set_grad_enabled(slopes), running as found:
            look.outputs = found
            look.loss = probe_loss(found, self.labels, self.loss)
            look.gradients = gradients_of(look.loss, leaves, curved=curved) if slopes else {}
        return look


def linear_map(
    function: Callable[[Tensor], Tensor],
    domain: tuple[int, ...],
    range_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> LinearMap:
    """Return the map of a linear torch function; its adjoint is recorded when it is first asked for, and only then.

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
    """Return the mean and the biased variance of every channel over all samples and places.

    >>> [t.tolist() for t in channel_moments(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), 1)]
    [[2.0, 0.0], [1.0, 0.0]]
    """
    rest = [i for i in range(x.ndim) if i != axis % x.ndim]
    wide = x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()
    if not rest:
        return wide, torch.zeros(x.shape[0])
    return wide.mean(dim=rest), wide.var(dim=rest, correction=0)


def trained(parameters: Mapping[str, Tensor], wanted: set[str]) -> dict[str, Tensor]:
    """Return leaves of our own that share the memory of the parameters, those in ``wanted`` to be differentiated."""
    return {name: value.detach().requires_grad_(name in wanted) for name, value in parameters.items()}


def gradients_of(loss: Tensor | None, leaves: Mapping[str, Tensor], *, curved: bool = False) -> dict[str, Tensor]:
    """Return the gradient of a loss with respect to leaves; those it does not depend on are left out.

    >>> w = torch.tensor([3.0], requires_grad=True)
    >>> gradients_of((w * w).sum(), {"w": w})["w"].tolist()
    [6.0]
    """
    if loss is None or not loss.requires_grad:
        return {}
    wanted = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    found = torch.autograd.grad(loss, list(wanted.values()), allow_unused=True, create_graph=curved)
    pairs = zip(wanted, found, strict=True)
    return {name: value if curved else value.detach() for name, value in pairs if value is not None}


#: Of each parameter and buffer by name: the first name of the same tensor, its shape, its dtype and its device.
Structure = dict[str, tuple[str, tuple[int, ...], str, str]]


def structure(model: nn.Module) -> Structure:
    """Return what parameters and buffers a model has, by every name; a tied one also says with which it is tied.

    >>> structure(nn.Linear(2, 1, bias=False))
    {'weight': ('weight', (1, 2), 'torch.float32', 'cpu')}
    """
    first: dict[int, str] = {}
    held = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {n: (first.setdefault(id(t), n), tuple(t.shape), str(t.dtype), str(t.device)) for n, t in held}


def difference(was: Structure, now: Structure) -> str:
    """Return in words what differs, nothing if nothing does.

    >>> difference(structure(nn.Linear(2, 1)), structure(nn.Linear(3, 1, bias=False)))
    'it no longer has bias; weight differs'
    >>> difference(structure(nn.Linear(2, 1)), structure(nn.Linear(2, 1)))
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
