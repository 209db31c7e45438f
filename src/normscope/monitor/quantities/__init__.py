"""The quantities of the monitor, one per file; a new file needs no other registration."""

from normscope.core.lazy import modules_in
from normscope.monitor.budget import PRESETS
from normscope.monitor.quantities.certified import CHARTS, DESCRIPTIONS
from normscope.monitor.quantity import Chart, Description, Quantity

_MEMBERS = [member for module in modules_in(__name__) for member in vars(module).values() if isinstance(member, type)]
_KINDS = {kind for kind in _MEMBERS if issubclass(kind, Quantity) and kind.name}
#: Every quantity of this folder, by the name it is chosen by, cheapest first.
QUANTITIES: dict[str, type[Quantity]] = {k.name: k for k in sorted(_KINDS, key=lambda k: (k.cost, k.name))}


def quantities_in(preset: str) -> tuple[str, ...]:
    """Return the names of the quantities that a preset measures, cheapest first.

    >>> sorted(set(quantities_in("standard")) - set(quantities_in("economy")))
    ['gradient', 'square_over_loss']
    """
    smaller = list(PRESETS)[: list(PRESETS).index(preset) + 1]
    return tuple(name for name, kind in QUANTITIES.items() if kind.preset in smaller)


def descriptions() -> tuple[Description, ...]:
    """Return the descriptions of all metrics, including certified ones.

    >>> [d.kind.value for d in descriptions() if d.matches("product/folded_log10")]
    ['lower']
    """
    return (*(d for kind in QUANTITIES.values() for d in kind.describes), *DESCRIPTIONS)


def charts() -> tuple[Chart, ...]:
    """Return the charts of all quantities, including those of certified constants."""
    return (*CHARTS, *(chart for kind in QUANTITIES.values() for chart in kind.charts))
