"""The loss on a batch: the model's own, the user's, or the usual one for the labels."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.nn import functional as F

from normscope.core.errors import InputError

Outputs = Mapping[str, Tensor]
#: The class number that marks a place without a label, as in torch.
IGNORED = -100
#: A loss of the outputs (the tensor, if there is one, otherwise a dictionary) and the labels.
LossFunction = Callable[..., Tensor]


def prediction(outputs: Outputs) -> Tensor:
    """Return the output that is compared with labels: the logits, or the first one that is not the loss.

    >>> prediction({"loss": torch.zeros(()), "logits": torch.ones(2, 3)}).shape
    torch.Size([2, 3])
    """
    if "logits" in outputs:
        return outputs["logits"]
    return next((value for name, value in outputs.items() if name != "loss"), next(iter(outputs.values())))


def probe_loss(outputs: Outputs, labels: Tensor | None, function: LossFunction | None = None) -> Tensor | None:
    """Return the loss on the probe batch, a scalar, or ``None`` if there is nothing to compute it from.

    Args:
        outputs: the outputs of the model, by name.
        labels: the labels of the batch.
        function: the user's loss ``f(outputs, labels)``, called with the single output or the dictionary of them.
            Without it: the model's own output ``loss``; for class numbers cross-entropy over the last (or, for images
            of classes, the second) axis; for numbers of the output's shape the mean squared error.

    Raises:
        InputError: if the loss is not a scalar, or the labels fit none of these losses.

    >>> round(float(probe_loss({"output": torch.zeros(2, 4)}, torch.tensor([0, 3]))), 4)
    1.3863
    """
    if function is not None:
        given = next(iter(outputs.values())) if len(outputs) == 1 else dict(outputs)
        loss = function(given) if labels is None else function(given, labels)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            raise InputError("Expected the loss to return a tensor with one element.")
        if loss.is_complex():
            raise InputError("Expected the loss to be real, got a complex tensor.")
        return loss.reshape(())
    own = outputs.get("loss")
    if own is not None and own.numel() == 1:
        return own.reshape(())
    if labels is None:
        return None
    found = prediction(outputs)
    if not labels.is_floating_point() and found.ndim == labels.ndim + 1:
        if found.shape[:-1] == labels.shape:
            return _cross_entropy(found.reshape(-1, found.shape[-1]), labels.reshape(-1))
        if (found.shape[0], *found.shape[2:]) == tuple(labels.shape):
            return _cross_entropy(found, labels)
    if labels.is_floating_point() and labels.numel() == found.numel():
        found = _precise(found)
        return F.mse_loss(found.reshape(labels.shape), labels.to(found.dtype))
    raise InputError(
        "Expected labels of the probe to be one class number per vector of scores, or numbers of "
        f"the output's shape. The output has shape {tuple(found.shape)}; the labels are "
        f"{labels.dtype} of shape {tuple(labels.shape)}. Pass matching labels, loss=f(outputs, "
        "labels), or a probe without labels."
    )


def _cross_entropy(scores: Tensor, classes: Tensor) -> Tensor:
    """Return the cross-entropy of scores with classes along axis 1."""
    count = scores.shape[1]
    # torch's own error for a class without a score would end a process on some accelerators
    wrong = classes[((classes < 0) | (classes >= count)) & (classes != IGNORED)]
    if wrong.numel():
        raise InputError(
            f"Expected labels of the probe from 0 to {count - 1}, since the output has scores of "
            f"{count} classes; got {int(wrong[0])}. Use numbers below {count} ({IGNORED} for none), or "
            "pass loss=f(outputs, labels)."
        )
    return F.cross_entropy(_precise(scores), classes.long())


def _precise(scores: Tensor) -> Tensor:
    """Return scores in single precision, or in double if that is what they are."""
    return scores if scores.dtype == torch.float64 else scores.float()


def class_scores(outputs: Outputs, labels: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Return scores (n, classes) and class numbers (n,), or ``None`` if the outputs are not scores of the labels.

    A model that computes its own loss from labels in a sequence may shift them; then the result is ``None``.

    >>> class_scores({"output": torch.zeros(2, 5, 4)}, torch.zeros(2, 5, dtype=torch.long))[0].shape
    torch.Size([10, 4])
    """
    if labels is None or labels.is_floating_point() or ("loss" in outputs and labels.ndim > 1):
        return None
    found = prediction(outputs).detach()
    if found.ndim != labels.ndim + 1 or found.shape[:-1] != labels.shape or found.shape[-1] < 2:
        return None
    scores, classes = found.reshape(-1, found.shape[-1]).float(), labels.reshape(-1).long()
    valid = (classes >= 0) & (classes < scores.shape[1])  # -100 and the like mark places without a label
    return (scores[valid], classes[valid]) if bool(valid.any()) else None
