"""Norms of layers, constants of normalizers, and the products of both."""

from collections.abc import Iterable

from normscope.core.value import ALL_INPUTS, Kind, Value, product
from normscope.monitor.quantity import Description, Quantity
from normscope.monitor.snapshot import Snapshot
from normscope.operators.normalizer import acts_on_weights

#: With fixed statistics this is no restriction.
ABOVE_PROBE = "inputs whose normalizer stds stay above those on the probe"


def lower_product(norms: Iterable[float]) -> Value:
    """Return the product of attained norms, a lower bound of the product of the norms; it cannot overflow.

    >>> round(lower_product([1e200, 1e200, 10.0]).log10, 9), lower_product([0.0, 2.0]).log10
    (401.0, -inf)
    """
    return product(Value.of(norm, Kind.LOWER) for norm in norms)


class SpectralNorms(Quantity):
    """``||W_k||`` of every linear layer and convolution as it acts, followed by warm-started Lanczos."""

    name = "norms"
    cost = 8
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


class FoldedNorms(Quantity):
    """``||diag(gamma/sigma) W_k||`` of every layer that BatchNorm with running statistics follows."""

    name = "folded"
    cost = 9
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
        """Return the folded norm of each layer that has one and, if none had to be left out, their product."""
        norms = moment.folded_norms
        every = norms and len(norms) == sum(layer.folded is not None for layer in moment.layers)
        found = {f"folded/{name}": norm for name, norm in norms.items()}
        return found | ({"product/folded_log10": lower_product(norms.values()).log10} if every else {})


class InverseSigma(Quantity):
    """Printed and proved constants of every normalizer of activations.

    With fixed statistics at their running variances; with the statistics of its own input where the standard deviation
    before it is at least the least one on the probe.
    """

    name = "inverse_sigma"
    cost = 10
    describes = (
        Description(
            "printed/*", Kind.PRINTED, "||1/sigma|| of a normalizer as the paper prints it", "than2025 Lemma 1"
        ),
        Description(
            "constant/*", Kind.CERTIFIED, "Lipschitz constant of a normalizer", "normscope F1", domain=ABOVE_PROBE
        ),
        Description(
            "product/inverse_sigma_printed_log10",
            Kind.PRINTED,
            "product of the printed constants; changes with the scale of the weights",
            "than2025 Theorem 9",
        ),
        Description(
            "product/inverse_sigma_proved_log10",
            Kind.CERTIFIED,
            "product of the proved constants, including the scale; changes with the scale of the weights",
            "normscope F1",
            domain=ABOVE_PROBE,
        ),
        Description(
            "product/inverse_sigma_slides_log10",
            Kind.PRINTED,
            "product of the constants as printed on the slides, including the scale",
            "than2025slides BN",
        ),
        Description(
            "product/inverse_sigma_unscaled_log10",
            Kind.CERTIFIED,
            "product of the proved constants of the normalizers without their scales",
            "normscope F1",
            domain=ABOVE_PROBE,
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the constants of each normalizer and their products; that of the slides only if all have one."""
        found: dict[str, float] = {}
        values: dict[str, list[Value | None]] = {"printed": [], "proved": [], "slides": [], "unscaled": []}
        for name, normalizer in {n.name: n for n in moment.normalizers}.items():
            if acts_on_weights(normalizer.site):
                continue
            constants = moment.constants.get(name)
            if constants is None:  # it could not be told now, so no product is one of all
                for each in values.values():
                    each.append(None)
                continue
            proved = constants.on_floor or constants.proved
            found[f"constant/{name}"] = proved.value
            if constants.printed is not None:
                found[f"printed/{name}"] = constants.printed.value
                values["printed"].append(constants.printed)
            plain = moment.constants_of(normalizer, scaled=False)
            values["proved"].append(proved)
            values["slides"].append(constants.slides)
            values["unscaled"].append(plain.on_floor or plain.proved)
        for key, each in values.items():
            known = [v for v in each if v is not None]
            if known and len(known) == len(each):
                found[f"product/inverse_sigma_{key}_log10"] = product(known).log10
        return found


class ChainEstimate(Quantity):
    r"""``prod_k c_k`` with folded norms where fixed normalization follows a layer, otherwise norm and constant apart.

    An estimate, no bound: it knows of no skip connection, attention or slope of an activation, and the norms are from
    below. ``Monitor.certify`` gives the bound.
    """

    name = "chain"
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
        """Return the estimate, if there is a layer and every factor is known."""
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
