"""Stochastic gradient descent on spheres and, for all other parameters, as always."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

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
        loss = None if closure is None else torch.enable_grad()(closure)()
        lengths: dict[Tensor, Tensor] = {}
        for group in self.param_groups:
            for p in group["params"]:
                if p not in self.spheres or p.grad is None:
                    continue
                rows = p.reshape(self.spheres[p], -1)
                lengths[p] = torch.linalg.vector_norm(rows, dim=1, keepdim=True)
                # The weight decay that plain SGD is about to add to the gradient is taken away in advance.
                decay = group["weight_decay"] if group["maximize"] else -group["weight_decay"]
                p.grad = project(rows, p.grad.reshape(rows.shape)).reshape(p.shape).add(p, alpha=decay)
        super().step()
        for p, length in lengths.items():
            rows = p.reshape(self.spheres[p], -1)
            rows = rows * (length / torch.linalg.vector_norm(rows, dim=1, keepdim=True))
            p.copy_(rows.reshape(p.shape))
            buffer = self.state[p].get("momentum_buffer")
            if buffer is not None:
                buffer.copy_(project(rows, buffer.reshape(rows.shape)).reshape(p.shape))
        return loss
