"""How the networks of the figures are trained: the paper's setting (001, appendix E), and smaller ones like it."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from normscope.core.errors import InputError

#: Networks of each figure, in the order in which it shows them.
FIGURES: dict[str, tuple[str, ...]] = {
    "fig1": ("relu10", "resnet18"),
    "fig2": ("relu10", "resnet18"),
    "fig3": ("efficientnet_b3",),
}
SCALES = ("smoke", "laptop", "long", "paper")


@dataclass(frozen=True)
class TrainingSetting:
    """One training run.

    He-normal weights, Adam, cross-entropy, inputs scaled into the unit ball.
    """

    name: str  #: of the network in the figures
    network: str  #: of the zoo
    arguments: Mapping[str, Any] = field(default_factory=dict)  #: of its builder
    data: str = "cifar10"  #: name of the training data
    examples: int | None = None  #: how many of them; ``None`` for all
    side: int | None = None  #: pixels of a side to which images are enlarged; ``None`` to leave them
    epochs: int = 100  #: passes over the data
    probes: int = 100  #: measurements along the run, besides the one at the start
    lr: float = 1e-3  #: step size
    batch: int = 128  #: examples of a step
    weight_decay: float = 1e-4  #: added to the gradient as ``weight_decay * w``
    seed: int = 0  #: random seed of weights and data order
    certified: bool = True  #: whether its constants are bounded at the start and at the end

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return asdict(self) | {"arguments": dict(self.arguments)}


_PAPER = {
    "relu10": TrainingSetting("relu10", "relu10"),
    "resnet18": TrainingSetting("resnet18", "resnet18_cifar"),
    "efficientnet_b3": TrainingSetting("efficientnet_b3", "efficientnet_b3", {"classes": 10, "image_size": 32}),
}
_LAPTOP = {
    "relu10": replace(_PAPER["relu10"], epochs=20, probes=80),
    # The stem of the 224-pixel variant halves the image twice at once: a fourteenth of the work.
    "resnet18": replace(_PAPER["resnet18"], network="resnet18", arguments={"classes": 10}, epochs=3, probes=40),
    "efficientnet_b3": replace(_PAPER["efficientnet_b3"], examples=8192, epochs=4, probes=16),
}
#: The paper's number of epochs on networks that a laptop can train for that long.
_LONG = {
    "relu10": _PAPER["relu10"],
    "resnet18": replace(_LAPTOP["resnet18"], arguments={"classes": 10, "width": 16}, epochs=100, probes=100),
    "efficientnet_b3": replace(_LAPTOP["efficientnet_b3"], epochs=100, probes=100),
}
_SMOKE = {
    "relu10": replace(
        _PAPER["relu10"], data="digits", arguments={"width": 64, "in_features": 64}, epochs=6, probes=6
    ),
    "resnet18": replace(
        _PAPER["resnet18"], data="digits", arguments={"width": 8}, side=16, examples=512, epochs=3, probes=3
    ),
    # About three fifths of the blocks of B3, by the same rule, and no bounds: what takes minutes there takes seconds.
    "efficientnet_b3": replace(
        _PAPER["efficientnet_b3"], network="efficientnet_b0", data="digits", side=16, examples=256, epochs=2, probes=2,
        certified=False,
    ),
}  # fmt: skip
_ALL = {"smoke": _SMOKE, "laptop": _LAPTOP, "long": _LONG, "paper": _PAPER}


def settings_of(figure: str, scale: str, seed: int = 0) -> tuple[TrainingSetting, ...]:
    """Return the training settings of a figure.

    Args:
        figure: a key of :data:`FIGURES`.
        scale: ``smoke`` (seconds, embedded digits), ``laptop`` (half an hour, CIFAR-10), ``long`` (hours: the paper's
            100 epochs, ResNet-18 at a quarter of its width) or ``paper`` (days on a CPU).
        seed: random seed.

    Returns:
        One setting per network.

    Raises:
        InputError: if the figure or the scale is unknown.

    >>> [s.network for s in settings_of("fig1", "paper")]
    ['relu10', 'resnet18_cifar']
    >>> settings_of("fig3", "paper")[0].epochs
    100
    """
    if figure not in FIGURES:
        raise InputError(f"Expected one of {', '.join(FIGURES)}, got {figure!r}.")
    if scale not in SCALES:
        raise InputError(f"Expected one of {', '.join(SCALES)}, got {scale!r}.")
    return tuple(replace(_ALL[scale][name], seed=seed) for name in FIGURES[figure])
