"""The loss on the probe batch: the model's own, the user's, or the usual one for the labels."""

from __future__ import annotations

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
    """Return the loss on the probe batch, a scalar, or ``None`` if there is nothing to tell it from.

    Args:
        outputs: what the model gave, by name.
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
        return F.mse_loss(found.float().reshape(labels.shape), labels.float())
    raise InputError(
        "labels on the probe are a class number for each vector of scores, or numbers of the output's shape; "
        f"the output has shape {tuple(found.shape)} and the labels are {labels.dtype} of shape {tuple(labels.shape)}: "
        "give labels that fit, loss=f(outputs, labels), or a probe without labels"
    )


def _cross_entropy(scores: Tensor, classes: Tensor) -> Tensor:
    """Return the cross-entropy of scores with classes along axis 1.

    Raises:
        InputError: if a class number has no score; torch's own error would end a process on some accelerators.
    """
    count = scores.shape[1]
    wrong = classes[((classes < 0) | (classes >= count)) & (classes != IGNORED)]
    if wrong.numel():
        raise InputError(
            f"the output has scores of {count} classes, numbered from 0, and the labels of the probe hold "
            f"{int(wrong[0])}: give numbers below {count} ({IGNORED} for none), or loss=f(outputs, labels)"
        )
    return F.cross_entropy(scores.float(), classes.long())


def class_scores(outputs: Outputs, labels: Tensor | None) -> tuple[Tensor, Tensor] | None:
    """Return scores (n, classes) and class numbers (n,), or ``None`` if the outputs are no scores of the labels.

    A model that computes its own loss of labels in a sequence may shift them; nothing is said of such.

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


def one_number(value: object) -> float:
    """Return a scalar of any kind as a float.

    Raises:
        InputError: if it holds more than one number, or none.

    >>> one_number(torch.tensor([2.0]))
    2.0
    """
    if isinstance(value, Tensor):
        if value.numel() != 1:
            raise InputError(f"Expected a scalar metric, got a tensor of shape {tuple(value.shape)}.")
        if value.is_complex():
            raise InputError("Expected a real metric, got a complex tensor.")
        return float(value.detach().reshape(()))
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        raise InputError(f"Expected a scalar metric, got {type(value).__name__}.") from None


def waiting(value: object) -> Tensor | float:
    """Return a scalar that is read later: of a tensor the tensor, so that nothing waits for an accelerator now.

    Raises:
        InputError: if it holds more than one number, or none.

    >>> waiting(3), waiting(torch.tensor([2.0]))
    (3.0, tensor([2.]))
    """
    simple = isinstance(value, Tensor) and value.numel() == 1 and not value.is_complex()
    return value.detach() if isinstance(value, Tensor) and simple else one_number(value)


def on_accelerator(value: object) -> bool:
    """Tell whether reading a value would wait for an accelerator."""
    return isinstance(value, Tensor) and value.device.type != "cpu" and not isinstance(value, torch.nn.Parameter)


class OwnNumbers:
    """Numbers given at steps, of each name the last one, until they are written.

    So a number that is given at every step is thinned out where there is no time to write it, and one that is given
    once in a while is kept.

    >>> own = OwnNumbers()
    >>> own.keep(1, {"loss": 0.5, "accuracy": 0.25})
    >>> own.keep(2, {"loss": 0.4, "nothing": None})
    >>> own.taken()
    {1: {'train/accuracy': 0.25}, 2: {'train/loss': 0.4}}
    >>> bool(own)
    False
    """

    def __init__(self) -> None:
        self._waiting: dict[str, tuple[int, Tensor | float]] = {}

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def keep(self, step: int, metrics: Mapping[str, object]) -> None:
        """Keep numbers of a step; ``None`` is no number.

        Raises:
            InputError: if one is not a single real number; then none of them is kept.
        """
        given = {name: (step, waiting(value)) for name, value in metrics.items() if value is not None}
        self._waiting.update(given)

    def at_hand(self) -> bool:
        """Tell whether nothing has to be fetched from an accelerator."""
        return not any(on_accelerator(value) for _, value in self._waiting.values())

    def taken(self) -> dict[int, dict[str, float]]:
        """Return what waits by step, as ``train/...``; it waits no longer."""
        found: dict[int, dict[str, float]] = {}
        for name, (step, value) in sorted(self._waiting.items(), key=lambda item: item[1][0]):
            found.setdefault(step, {})[f"train/{name}"] = one_number(value)
        self._waiting = {}
        return found
