"""The quantities of the monitor, one a file: pure functions, and twins that remember what saves work."""

from __future__ import annotations

from normscope.core.lazy import modules_in
from normscope.monitor.quantities.certified import DESCRIPTIONS
from normscope.monitor.quantity import Description, Quantity

#: Every quantity of this folder, by the name it is chosen by, cheapest first.
QUANTITIES: dict[str, type[Quantity]] = {
    kind.name: kind
    for kind in sorted(
        {
            kind
            for module in modules_in(__name__)
            for kind in vars(module).values()
            if isinstance(kind, type) and issubclass(kind, Quantity) and kind.name
        },
        key=lambda kind: (kind.cost, kind.name),
    )
}


def descriptions() -> tuple[Description, ...]:
    """Return what every metric of every quantity is, certified ones included.

    >>> [d.kind.value for d in descriptions() if d.matches("product/folded_log10")]
    ['lower']
    """
    return (*(d for kind in QUANTITIES.values() for d in kind.describes), *DESCRIPTIONS)
