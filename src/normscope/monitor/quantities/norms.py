"""Spectral norms of the linear layers, and their product."""

from collections.abc import Iterable

from normscope.core.value import ALL_INPUTS, Kind, Value, product
from normscope.monitor.quantity import Chart, Description, Quantity, Snapshot


def lower_product(norms: Iterable[float]) -> Value:
    """Return the product of attained norms, a lower bound of the product of the norms; it cannot overflow.

    >>> round(lower_product([1e200, 1e200, 10.0]).log10, 9), lower_product([0.0, 2.0]).log10
    (401.0, -inf)
    """
    return product(Value.of(norm, Kind.LOWER) for norm in norms)


class SpectralNorms(Quantity):
    """``||W_k||`` of every linear layer and convolution, by warm-started Lanczos."""

    name = "norms"
    preset = "economy"
    cost = 8
    charts = (
        Chart(
            "product",
            "Products of norms, and of 1/sigma as printed and as proved",
            "log",
            ("product/*", "bound/*"),
            40,
            whole=True,
        ),
        Chart("norm", "Spectral norm of each layer", "log", ("norm/*",), 60),
    )
    describes = (
        Description(
            "norm/*",
            Kind.LOWER,
            "spectral norm of the effective weight of a layer, attained",
            "normscope norm",
            domain=ALL_INPUTS,
        ),
        Description(
            "product/norms_log10",
            Kind.LOWER,
            "product of the layers' spectral norms, lower bounds",
            "than2025 Lemma 5",
            domain=ALL_INPUTS,
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the norm of each layer and, if all have one, the product of all."""
        found = {f"norm/{name}": norm for name, norm in moment.norms.items()}
        every = found and len(found) == len(moment.layers)
        return found | ({"product/norms_log10": lower_product(moment.norms.values()).log10} if every else {})
