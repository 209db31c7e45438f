"""Margins of a classifier: raw, and divided by a norm that makes them a distance."""

from torch import Tensor

from normscope.core.statement import statement


def margins(scores: Tensor, classes: Tensor) -> Tensor:
    r"""Return ``f_y - max_{j != y} f_j`` of every sample; positive where the class is right.

    >>> import torch
    >>> margins(torch.tensor([[2.0, 0.5], [1.0, 4.0]]), torch.tensor([0, 0])).tolist()
    [1.5, -3.0]
    """
    index = classes.unsqueeze(1)
    right = scores.gather(1, index).squeeze(1)
    others = scores.scatter(1, index, float("-inf"))
    return right - others.amax(1)


@statement("normscope", "Proposition GEN-9", holds="the share that margin bounds add to")
def margin_loss(margin: Tensor, gamma: float) -> float:
    """Return the share of samples whose margin is at most gamma.

    >>> import torch
    >>> margin_loss(torch.tensor([0.5, 1.5, -1.0, 3.0]), 1.0)
    0.5
    """
    return float((margin <= gamma).double().mean())


@statement("normscope", "Proposition GEN-9", holds="between the error and the margin loss; sqrt(2)/gamma-Lipschitz")
def ramp_loss(margin: Tensor, gamma: float) -> Tensor:
    """Return ``min(1, max(0, 1 - margin/gamma))`` of every sample: at least the error, and Lipschitz in the scores.

    >>> import torch
    >>> ramp_loss(torch.tensor([0.5, 1.5, -1.0]), 1.0).tolist()
    [0.5, 0.0, 1.0]
    """
    return (1 - margin / gamma).clamp(0.0, 1.0)
