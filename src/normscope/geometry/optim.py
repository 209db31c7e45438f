"""Optimizers that keep scale-invariant weights on their spheres; the model's parameters stay ordinary ones.

A weight whose scale a normalizer undoes moves on a sphere of fixed radius; all other parameters are updated as by the
optimizer of ``torch.optim``. :func:`riemannian` finds these weights and makes the optimizer.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError
from normscope.geometry.candidates.scales import ChannelScales
from normscope.geometry.discover import Symmetries, symmetry
from normscope.geometry.sphere import project


class RiemannianSGD(torch.optim.SGD):
    r"""SGD whose scale-invariant weights keep their length.

    On a sphere of radius ``r = ||w||`` the step is ``w <- r (w - eta d)/||w - eta d||`` with ``d`` the momentum of the
    tangent gradients, itself made tangent after every step. The direction moves with the rate ``eta/r^2`` of plain SGD,
    to first order in eta; plain SGD lets ``r`` grow by ``eta^2 ||grad||^2`` a step and so lowers that rate as it goes.
    Weight decay has no meaning for a weight of fixed length and is not applied to spheres.

    Args:
        params: parameters or groups of them, as for ``torch.optim.SGD``.
        lr: learning rate.
        spheres: the parameters on spheres, with the number of vectors each consists of.
        **options: of ``torch.optim.SGD``.
    """

    def __init__(self, params: Any, lr: float = 1e-3, *, spheres: Mapping[Tensor, int], **options: Any) -> None:
        super().__init__(params, lr=lr, **options)
        self.spheres = dict(spheres)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one optimization step."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        kept: list[tuple[Tensor, Tensor, Tensor]] = []
        for group in self.param_groups:
            for p in group["params"]:
                if p not in self.spheres or p.grad is None:
                    continue
                rows = p.reshape(self.spheres[p], -1)
                kept.append((p, p.grad, torch.linalg.vector_norm(rows, dim=1, keepdim=True)))
                # The weight decay that plain SGD is about to add to the gradient is taken away in advance.
                decay = group["weight_decay"] if group["maximize"] else -group["weight_decay"]
                p.grad = project(rows, p.grad.reshape(rows.shape)).reshape(p.shape).add(p, alpha=decay)
        super().step()
        for p, gradient, length in kept:
            p.grad = gradient
            rows = p.reshape(self.spheres[p], -1)
            rows = rows * (length / torch.linalg.vector_norm(rows, dim=1, keepdim=True))
            p.copy_(rows.reshape(p.shape))
            buffer = self.state[p].get("momentum_buffer")
            if buffer is not None:
                buffer.copy_(project(rows, buffer.reshape(rows.shape)).reshape(p.shape))
        return loss


class RiemannianAdam(torch.optim.AdamW):
    r"""AdamW whose scale-invariant weights keep their length.

    On a sphere the second moment is one number per vector, the mean square of its tangent gradient, so that the step
    does not depend on the choice of axes: ``w <- r (w - eta m/(sqrt(v) + eps))/||...||``, ``m`` made tangent after
    every step. A vector of n entries moves by about ``eta sqrt(n)`` a step, as with Adam. Weight decay has no meaning
    on a sphere and is not applied there.

    Args:
        params: parameters or groups of them, as for ``torch.optim.AdamW``.
        lr: learning rate.
        spheres: the parameters on spheres, with the number of vectors each consists of.
        **options: of ``torch.optim.AdamW``.
    """

    def __init__(self, params: Any, lr: float = 1e-3, *, spheres: Mapping[Tensor, int], **options: Any) -> None:
        super().__init__(params, lr=lr, **options)
        self.spheres = dict(spheres)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Perform one optimization step."""
        loss = None if closure is None else torch.enable_grad()(closure)()
        hidden: list[tuple[Tensor, Tensor]] = []
        for group in self.param_groups:
            for p in group["params"]:
                if p in self.spheres and p.grad is not None:
                    hidden.append((p, p.grad))
                    self._on_sphere(p, p.grad, self.spheres[p], group)
                    p.grad = None
        super().step()
        for p, gradient in hidden:
            p.grad = gradient
        return loss

    def _on_sphere(self, p: Tensor, gradient: Tensor, blocks: int, group: dict[str, Any]) -> None:
        """Update one parameter on its spheres."""
        state, (first, second) = self.state[p], group["betas"]
        if not state:
            state["step"] = torch.zeros((), dtype=torch.float32)
            state["exp_avg"] = torch.zeros_like(p)
            state["exp_avg_sq"] = torch.zeros(blocks, 1, dtype=p.dtype, device=p.device)
        state["step"] += 1
        count = float(state["step"])
        rows, mean = p.reshape(blocks, -1), state["exp_avg"].reshape(blocks, -1)
        length = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
        tangent = project(rows, (-gradient if group["maximize"] else gradient).reshape(blocks, -1))
        mean = mean.lerp(tangent, 1 - first)
        state["exp_avg_sq"].lerp_(tangent.square().mean(1, keepdim=True), 1 - second)
        root = (state["exp_avg_sq"] / (1 - second**count)).sqrt_().add_(group["eps"])
        moved = rows - mean * (group["lr"] / (1 - first**count)) / root
        moved = moved * (length / torch.linalg.vector_norm(moved, dim=1, keepdim=True))
        p.copy_(moved.reshape(p.shape))
        state["exp_avg"].copy_(project(moved, mean).reshape(p.shape))


#: The optimizer on spheres that stands for each one of torch.
_ON_SPHERES: dict[type[torch.optim.Optimizer], type[RiemannianSGD] | type[RiemannianAdam]] = {
    torch.optim.SGD: RiemannianSGD,
    torch.optim.Adam: RiemannianAdam,
    torch.optim.AdamW: RiemannianAdam,
}


def spheres_of(found: Symmetries) -> dict[str, int]:
    """Return the parameters that are scale-invariant by themselves, with the number of vectors each consists of.

    One vector per output before BatchNorm or InstanceNorm and for weight normalization, one per group before GroupNorm,
    one in all before LayerNorm or RMSNorm. Weights that are invariant only together with others are left out; a bias
    beside a weight does not count where it may be shifted freely.

    Args:
        found: the symmetries of the model.

    >>> net = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(288, 2))
    >>> spheres_of(symmetry(net, torch.randn(4, 3, 8, 8)))
    {'0.weight': 8}
    """
    sizes = {name: found.function.tensors[name].numel() for name in found.function.names}
    free = {g.parameters[0] for g in found.groups if g.kind == "shift" and g.dimension == sizes[g.parameters[0]]}
    spheres: dict[str, int] = {}
    for group in found.scale_invariant:
        family = group.family
        own = [name for name in group.parameters if name not in free]
        if not isinstance(family, ChannelScales) or len(own) != 1:
            continue
        numbers = torch.arange(1.0, family.size + 1, dtype=torch.float64)
        exponents = family.exponents(family.of_labels(numbers))[own[0]].reshape(-1)
        entries = exponents.numel() // family.size
        if entries > 1 and torch.equal(exponents, numbers.repeat_interleave(entries)):
            spheres[own[0]] = family.size
    return spheres


def riemannian(
    model: nn.Module,
    optimizer: type[torch.optim.Optimizer],
    data: Any = None,
    *,
    spheres: Mapping[str, int] | None = None,
    params: Any = None,
    input_shape: tuple[int, ...] | None = None,
    **options: Any,
) -> RiemannianSGD | RiemannianAdam:
    """Return an optimizer that keeps scale-invariant weights on their spheres and updates all others as the given one.

    The weights keep their values and lengths, and the model's state dict its keys. Load checkpoints of the optimizer
    into one made by the same call.

    Args:
        model: the model to be trained.
        optimizer: ``torch.optim.SGD``, ``Adam`` or ``AdamW``.
        data: a few inputs, to find the scale-invariant weights with; guessed if there are none.
        spheres: the weights on spheres with their numbers of vectors, if known.
        params: parameters or groups, as for the optimizer; all of the model's by default.
        input_shape: shape of one input without batch axis, if there is no data and it cannot be guessed.
        **options: of the optimizer.

    Raises:
        InputError: if the optimizer has no version on spheres, or a parameter is unknown.

    >>> net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))
    >>> type(riemannian(net, torch.optim.AdamW, torch.randn(8, 3), lr=1e-3)).__name__
    'RiemannianAdam'
    """
    chosen = _ON_SPHERES.get(optimizer)
    if chosen is None:
        raise InputError(f"Expected torch.optim.SGD, Adam or AdamW, got {getattr(optimizer, '__name__', optimizer)}.")
    if optimizer is torch.optim.Adam and options.get("weight_decay"):
        raise InputError("Use torch.optim.AdamW for weight decay, which is decoupled there.")
    if optimizer is torch.optim.Adam:
        options = {"weight_decay": 0.0, **options}
    named = dict(model.named_parameters())
    if spheres is None:
        spheres = spheres_of(symmetry(model, data, input_shape=input_shape))
    unknown = sorted(set(spheres) - set(named))
    if unknown:
        raise InputError(f"Unknown parameters: {', '.join(unknown)}.")
    given = model.parameters() if params is None else params
    return chosen(given, spheres={named[name]: blocks for name, blocks in spheres.items()}, **options)
