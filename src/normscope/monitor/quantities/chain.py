"""A cheap end-to-end estimate: the constants of layers and normalizers multiplied as if the network were a chain."""

from normscope.core.value import Kind, product
from normscope.monitor.quantities.norms import lower_product
from normscope.monitor.quantity import Description, Quantity, Snapshot
from normscope.operators.normalizer import acts_on_weights


class ChainEstimate(Quantity):
    r"""``prod_k c_k`` with folded norms where fixed normalization follows a layer, otherwise norm times constant.

    An estimate, not a bound: it ignores skip connections, attention and the slopes of activations, and the norms are
    lower bounds. ``Monitor.certify`` gives a bound.
    """

    name = "chain"
    preset = "economy"
    cost = 11
    describes = (
        Description(
            "bound/chain_log10",
            Kind.ESTIMATE,
            "folded norms and normalizer constants multiplied along the network as if it were a chain",
            "normscope F1",
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the estimate, if there are layers and every factor is known."""
        folded = [x.normalizer for x in moment.layers if x.folded is not None]
        if not moment.layers or len(moment.norms) < len(moment.layers) or len(moment.folded_norms) < len(folded):
            return {}
        norms = moment.norms | moment.folded_norms
        parts = [lower_product(norms.values())]
        for normalizer in moment.normalizers:
            if normalizer.site.node in folded or acts_on_weights(normalizer.site):
                continue
            constants = moment.constants.get(normalizer.name)
            if constants is None:
                return {}
            parts.append(constants.on_floor or constants.proved)
        return {"bound/chain_log10": product(parts).log10}
