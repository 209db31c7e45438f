"""Stochastic gradient descent on spheres and, for all other parameters, as always."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.geometry.optim.spheres import blocks_of
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
        spheres: into how many vectors each parameter on spheres falls, by the parameter itself.
        **options: of ``torch.optim.SGD``.
    """

    def __init__(self, params: Any, lr: float = 1e-3, *, spheres: Mapping[Tensor, int], **options: Any) -> None:
        super().__init__(params, lr=lr, **options)
        self.spheres = dict(spheres)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do one step."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        moving = [(p, n) for p, n in self.spheres.items() if p.grad is not None]
        lengths = []
        for p, n in moving:
            rows = blocks_of(p, n)
            lengths.append(torch.linalg.vector_norm(rows, dim=1, keepdim=True))
            assert p.grad is not None
            p.grad = project(rows, blocks_of(p.grad, n)).reshape(p.shape)
        decays = [(group, group["weight_decay"]) for group in self.param_groups]
        self._without_decay(moving)
        super().step()
        for group, decay in decays:
            group["weight_decay"] = decay
        for (p, n), length in zip(moving, lengths, strict=True):
            rows = blocks_of(p, n)
            rows.mul_(length / torch.linalg.vector_norm(rows, dim=1, keepdim=True))
            p.copy_(rows.reshape(p.shape))
            buffer = self.state[p].get("momentum_buffer")
            if buffer is not None:
                buffer.copy_(project(rows, blocks_of(buffer, n)).reshape(p.shape))
        return loss

    def _without_decay(self, moving: list[tuple[Tensor, int]]) -> None:
        """Cancel the weight decay of spheres in advance: it is added to the gradient."""
        inside = {id(p) for p, _ in moving}
        for group in self.param_groups:
            decay = group["weight_decay"]
            if not decay:
                continue
            for p in group["params"]:
                if id(p) in inside and p.grad is not None:
                    p.grad = p.grad.add(p, alpha=decay if group.get("maximize") else -decay)
