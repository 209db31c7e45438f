"""Layers folded with the fixed normalization after them, and their product: unchanged when a weight is rescaled."""

from normscope.core.value import ALL_INPUTS, Kind
from normscope.monitor.quantities.norms import lower_product
from normscope.monitor.quantity import Chart, Description, Quantity, Snapshot


class FoldedNorms(Quantity):
    """``||diag(gamma/sigma) W_k||`` of every layer that BatchNorm with running statistics follows."""

    name = "folded"
    preset = "economy"
    cost = 9
    charts = (Chart("folded", "Norm of each layer folded with its normalizer", "log", ("folded/*",), 70),)
    describes = (
        Description(
            "folded/*",
            Kind.LOWER,
            "norm of a layer with the normalization after it, attained",
            "normscope F1",
            domain=ALL_INPUTS,
        ),
        Description(
            "product/folded_log10",
            Kind.LOWER,
            "product of the folded norms, lower bounds; rescaling a weight does not change it",
            "normscope F1",
            domain=ALL_INPUTS,
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the folded norm of each layer and, if none failed, their product."""
        norms = moment.folded_norms
        every = norms and len(norms) == sum(layer.folded is not None for layer in moment.layers)
        found = {f"folded/{name}": norm for name, norm in norms.items()}
        return found | ({"product/folded_log10": lower_product(norms.values()).log10} if every else {})
