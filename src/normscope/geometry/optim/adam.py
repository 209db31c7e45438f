"""Adam on spheres and, for all other parameters, as always."""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from normscope.geometry.sphere import project


class RiemannianAdam(torch.optim.AdamW):
    r"""AdamW whose scale-invariant weights keep their length.

    On a sphere the second moment is one number per vector, the mean square of its tangent gradient, so that the step
    does not depend on the choice of axes: ``w <- r (w - eta m/(sqrt(v) + eps))/||...||``, ``m`` made tangent after
    every step. A vector of n entries moves by about ``eta sqrt(n)`` a step, as with Adam. Weight decay has no meaning
    on a sphere and is not applied there.

    Args:
        params: parameters or groups of them, as for ``torch.optim.AdamW``.
        lr: learning rate.
        spheres: into how many vectors each parameter on spheres falls, by the parameter itself.
        **options: of ``torch.optim.AdamW``.
    """

    def __init__(self, params: Any, lr: float = 1e-3, *, spheres: Mapping[Tensor, int], **options: Any) -> None:
        super().__init__(params, lr=lr, **options)
        self.spheres = dict(spheres)

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Do one step."""
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
        """Move one parameter."""
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
