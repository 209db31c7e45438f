"""From stored numbers to a network's inputs: scale to [0, 1], then subtract a mean and divide by a deviation."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from normscope.core.errors import InputError

#: Mean and standard deviation per channel of images in [0, 1].
PRESETS: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
}


@dataclass(frozen=True)
class Normalization:
    r"""The affine map :math:`x \mapsto (x / \mathrm{top} - \mathrm{mean}) / \mathrm{std}` per channel."""

    name: str  #: of the preset, ``"unit"``, ``"raw"`` or ``"custom"``
    top: float = 1.0  #: the stored value that becomes 1
    mean: tuple[float, ...] = ()  #: per channel, empty for none
    std: tuple[float, ...] = ()  #: per channel, empty for none

    def __call__(self, raw: torch.Tensor) -> torch.Tensor:
        """Return a batch (N, C, ...) in the network's units; float32, or float64 if that was its dtype.

        >>> Normalization("custom", 255.0, (0.5,), (0.5,))(torch.tensor([[[0, 255]]], dtype=torch.uint8))
        tensor([[[-1.,  1.]]])
        """
        x = raw.to(raw.dtype if raw.dtype == torch.float64 else torch.float32)
        if self.top != 1.0:
            x = x / self.top
        if not self.mean:
            return x
        axes = (-1, *(1,) * (x.dim() - 2))
        mean = torch.tensor(self.mean, dtype=x.dtype).reshape(axes)
        std = torch.tensor(self.std, dtype=x.dtype).reshape(axes)
        return (x - mean) / std


def normalization(
    choice: str | tuple[Sequence[float], Sequence[float]], top: float, shape: tuple[int, ...]
) -> Normalization:
    """Return the normalization a user asked for.

    Args:
        choice: ``"unit"`` (values in [0, 1]), ``"raw"`` (as stored), a key of :data:`PRESETS`, or mean and standard
            deviation per channel of values in [0, 1].
        top: the largest value stored numbers can have; 1 if they are not pixels.
        shape: of one example, channels first.

    >>> normalization("imagenet", 255.0, (3, 32, 32)).std
    (0.229, 0.224, 0.225)
    """
    if choice == "raw":
        return Normalization("raw")
    if choice == "unit":
        return Normalization("unit", top)
    if isinstance(choice, str):
        if choice not in PRESETS:
            raise InputError(
                f"Expected normalize to be raw, unit, {', '.join(PRESETS)} or (mean, std); got {choice!r}."
            )
        name, (mean, std) = choice, PRESETS[choice]
    else:
        name, mean, std = "custom", tuple(map(float, choice[0])), tuple(map(float, choice[1]))
    channels = shape[0] if shape else 0
    if len(mean) != len(std) or len(mean) not in (1, channels):
        raise InputError(
            f"Expected one mean and std, or one per channel; {name} has {len(mean)} means and "
            f"{len(std)} deviations, and the data have shape {shape}."
        )
    if not all(deviation > 0 for deviation in std):
        raise InputError(f"Expected positive standard deviations, got {std}.")
    return Normalization(name, top, mean, std)
