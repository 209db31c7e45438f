"""What the monitor measures by default, by what it may cost."""

from __future__ import annotations

from dataclasses import dataclass

from normscope.core.errors import InputError

_WEIGHTS = (
    "loss", "margins", "variance", "minimum_norm", "effective_rate", "angle", "norms", "folded", "inverse_sigma",
    "chain",
)  # fmt: skip
_GRADIENT = ("gradient", "square_over_loss")


@dataclass(frozen=True)
class Preset:
    """How much to measure.

    Attributes:
        quantities: names of the quantities.
        budget: share of the wall time that probes may take.
        every: least number of updates between two probes.
        certify: probes between two certified analyses; 0 for none.
    """

    quantities: tuple[str, ...]
    budget: float
    every: int
    certify: int = 0


PRESETS = {
    "economy": Preset(_WEIGHTS, 0.02, 20),
    "standard": Preset((*_WEIGHTS, *_GRADIENT), 0.05, 10),
    "full": Preset((*_WEIGHTS, *_GRADIENT, "landscape"), 0.5, 10, certify=10),
}


def preset_of(name: str) -> Preset:
    """Return a preset by name.

    Raises:
        InputError: if there is none of that name.

    >>> preset_of("economy").budget
    0.02
    """
    if name not in PRESETS:
        raise InputError(f"Unknown preset {name!r}. Known: {', '.join(PRESETS)}.")
    return PRESETS[name]
