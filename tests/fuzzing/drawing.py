"""What every builder of random modules must keep: samples stay apart, inputs stay as they are, seeds decide."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fuzzing.draw import Draw, Shape

Builder = Callable[[Draw, Shape], nn.Module]
#: What torch says of a shape it does not take.
REFUSALS = (RuntimeError, ValueError, IndexError, AssertionError)


def built(builder: Builder, seed: int, shape: Shape) -> nn.Module | None:
    """Return what a builder makes from a seed, or ``None`` where torch refuses it for this shape."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            module = builder(Draw(seed), shape).eval()
            with torch.no_grad():
                module(Draw(seed).tensor(3, *shape))
        except REFUSALS:
            return None
    return module


def keeps(module: nn.Module, x: Tensor) -> Tensor:
    """Return what a module gives, after holding it against what every one must keep."""
    before = x.clone()
    with torch.no_grad():
        y = module(x)
        assert torch.equal(x, before), f"{module} writes into its input"
        assert y.is_floating_point()
        assert y.dtype == torch.float64, module
        again = module(x)
        assert torch.equal(y, again) or bool(y.isnan().any()), f"{module} is not a function"
    return y


def names_of(modules: list[nn.Module]) -> set[str]:
    """Return what was drawn: the first word of a function's name, or the class."""
    return {str(getattr(m, "name", type(m).__name__)).split(" axis")[0].split(" dims")[0] for m in modules}
