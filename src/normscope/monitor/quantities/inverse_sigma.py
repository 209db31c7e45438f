"""The constants of normalizers: the papers' ``1/sigma`` as printed, the constants as proved, and their products."""

from normscope.core.value import Kind, Value, product
from normscope.monitor.quantity import Chart, Description, Quantity, Snapshot
from normscope.operators.normalizer import acts_on_weights

#: For fixed statistics this is no restriction.
ABOVE_PROBE = "inputs whose normalizer stds stay above those on the probe"


class InverseSigma(Quantity):
    """Printed and proved constants of every normalizer of activations.

    With fixed statistics, at their running variances; with the statistics of its input, where the standard deviation
    before it is at least the smallest one on the probe.
    """

    name = "inverse_sigma"
    preset = "economy"
    cost = 10
    charts = (
        Chart("printed", "1/sigma of each normalizer, as printed", "log", ("printed/*",), 170),
        Chart("constant", "Lipschitz constant of each normalizer, proved", "log", ("constant/*",), 180),
    )
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
        """Return the constants of each normalizer, and each product for which all factors are known."""
        found: dict[str, float] = {}
        values: dict[str, list[Value | None]] = {"printed": [], "proved": [], "slides": [], "unscaled": []}
        for name, normalizer in {n.name: n for n in moment.normalizers}.items():
            if acts_on_weights(normalizer.site):
                continue
            constants = moment.constants.get(name)
            if constants is None:  # it failed, so there is no product of all
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
