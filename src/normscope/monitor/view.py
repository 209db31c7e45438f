"""What quantities see of a model: its layers and normalizers with their live values, and one pass over the probe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from normscope.core.errors import listed
from normscope.graph.capture import tensors_in
from normscope.operators.linear_map import LinearMap
from normscope.operators.site import Site

MapOf = Callable[[torch.dtype], LinearMap]


@dataclass(frozen=True, eq=False)
class Layer:
    """A linear layer as it acts in the network, with the weights of this moment.

    Attributes:
        name: as in the result of ``analyze``.
        parameter: the trained parameter behind its weight; of weight normalization the directions.
        map: the linear map it is, without bias, in a given precision.
        folded: the same followed by the fixed normalization right after it, if there is one.
        normalizer: the graph node of that normalization.
        output_axis: the axis of the parameter that counts outputs.
    """

    name: str
    parameter: str
    map: MapOf
    folded: MapOf | None = None
    normalizer: str = ""
    output_axis: int = 0


@dataclass(frozen=True, eq=False)
class Normalizer:
    """A normalizer with the parameters and statistics of this moment.

    Attributes:
        name: as in the result of ``analyze``.
        site: where it stands and what it divides by.
    """

    name: str
    site: Site


@dataclass(eq=False)
class Look:
    """One pass over the probe batch.

    Attributes:
        outputs: what the model gave, by name.
        loss: the loss, if there is one.
        variances: per-channel variance before each normalizer, by its name.
        means: per-channel mean there.
        logits: largest distance of an attention logit from the middle of its row, by layer.
        floors: least spread of each group before normalizers that use the statistics of their input.
        activations: per-channel variance before each activation.
        gradients: of the loss, by parameter; empty if they were not asked for.
        leaves: the parameters that gradients with a graph are functions of; empty unless such were asked for.
    """

    outputs: dict[str, Tensor] = field(default_factory=dict)
    loss: Tensor | None = None
    variances: dict[str, Tensor] = field(default_factory=dict)
    means: dict[str, Tensor] = field(default_factory=dict)
    logits: dict[str, float] = field(default_factory=dict)
    floors: dict[str, Tensor] = field(default_factory=dict)
    activations: dict[str, Tensor] = field(default_factory=dict)
    gradients: dict[str, Tensor] = field(default_factory=dict)
    leaves: dict[str, Tensor] = field(default_factory=dict)


class View(Protocol):
    """A model and its probe batch; two kinds: by the captured graph, and by modules."""

    model: nn.Module
    notes: tuple[str, ...]
    labels: Tensor | None
    inputs: list[Tensor]

    def refresh(self) -> str:
        """Forget what was read of the weights: they have moved. Return what made it another model, if it is one."""
        ...

    def parameters(self) -> dict[str, Tensor]:
        """Return the live parameters the probe reaches, detached, by name."""
        ...

    def copied(self) -> dict[str, Tensor]:
        """Return copies of the parameters and buffers that the probe reaches, to look at this moment later."""
        ...

    def layers(self) -> tuple[Layer, ...]:
        """Return the linear layers in order."""
        ...

    def normalizers(self) -> tuple[Normalizer, ...]:
        """Return the normalizers in order."""
        ...

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
        ...


def linear_map(
    function: Callable[[Tensor], Tensor],
    domain: tuple[int, ...],
    range_shape: tuple[int, ...],
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> LinearMap:
    """Return the map of a linear torch function; its adjoint is recorded when it is first asked for, and only then.

    Args:
        function: a linear function of one tensor.
        domain: the shape of its argument.
        range_shape: the shape of its value.
        dtype: the dtype both work in.
        device: the device both work on.

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

    return LinearMap(apply, adjoint, domain, range_shape, dtype=dtype, device=device)


def channel_variance(x: Tensor, axis: int) -> Tensor:
    """Return the biased variance of every channel over all samples and places.

    Args:
        x: the values before a normalizer or activation.
        axis: the axis of the channels.

    >>> channel_variance(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), 1).tolist()
    [1.0, 0.0]
    """
    rest = [i for i in range(x.ndim) if i != axis % x.ndim]
    if not rest:
        return torch.zeros(x.shape[0])
    wide = x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()
    return wide.var(dim=rest, correction=0)


def channel_mean(x: Tensor, axis: int) -> Tensor:
    """Return the mean of every channel over all samples and places.

    >>> channel_mean(torch.tensor([[1.0, 0.0], [3.0, 0.0]]), 1).tolist()
    [2.0, 0.0]
    """
    rest = [i for i in range(x.ndim) if i != axis % x.ndim]
    wide = x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()
    return wide.mean(dim=rest) if rest else wide


def trained(parameters: Mapping[str, Tensor], wanted: set[str]) -> dict[str, Tensor]:
    """Return leaves of our own that share the memory of the parameters, those in ``wanted`` to be differentiated."""
    return {name: value.detach().requires_grad_(name in wanted) for name, value in parameters.items()}


def gradients_of(loss: Tensor | None, leaves: Mapping[str, Tensor], *, curved: bool = False) -> dict[str, Tensor]:
    """Return the gradient of a loss with respect to leaves; those it does not depend on are left out.

    Args:
        loss: the loss, or nothing.
        leaves: the parameters.
        curved: keep the graph of the gradient.

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


def outputs_of(value: Any) -> list[tuple[str, Tensor]]:
    """Return the floating tensors of a model's output by name, in order, as a captured graph gives them.

    >>> [key for key, _ in outputs_of({"loss": torch.zeros(()), "more": (torch.ones(2), None)})]
    ['loss', 'more.0']
    """
    return tensors_in(value)


#: Of each parameter and buffer by name: the first name of the same tensor, its shape, its dtype and its device.
Structure = dict[str, tuple[str, tuple[int, ...], str, str]]


def structure(model: nn.Module) -> Structure:
    """Return what parameters and buffers a model has, by every name; a tied one also says with which it is tied.

    Args:
        model: the model.

    >>> structure(nn.Linear(2, 1, bias=False))
    {'weight': ('weight', (1, 2), 'torch.float32', 'cpu')}
    """
    first: dict[int, str] = {}
    held = (*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False))
    return {n: (first.setdefault(id(t), n), tuple(t.shape), str(t.dtype), str(t.device)) for n, t in held}


def difference(was: Structure, now: Structure) -> str:
    """Return in words what differs, nothing if nothing does.

    Args:
        was: what the model was made of.
        now: what it is made of.

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
