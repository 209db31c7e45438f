"""What the normalizers multiply with: the papers' product of ``1/sigma`` as printed, and the constants as proved."""

from __future__ import annotations

from normscope.core.value import Kind, Value, product
from normscope.lipschitz.normalizers import OF_WEIGHTS
from normscope.monitor.quantity import Description, Quantity
from normscope.monitor.snapshot import Snapshot

#: With fixed statistics this is no restriction.
ABOVE_PROBE = "inputs whose normalizer stds stay above those on the probe"


class InverseSigma(Quantity):
    """Printed and proved constants of every normalizer of activations.

    With fixed statistics at their running variances; with the statistics of its own input where the standard deviation
    before it is at least the least one on the probe.
    """

    name = "inverse_sigma"
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
            "product of the printed constants; moves with the scale of the weights",
            "than2025 Theorem 9",
            log10=True,
        ),
        Description(
            "product/inverse_sigma_proved_log10",
            Kind.CERTIFIED,
            "product of the proved constants, scale included; moves with the scale of the weights",
            "normscope F1",
            log10=True,
            domain=ABOVE_PROBE,
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the constants of each normalizer and their products."""
        found: dict[str, float] = {}
        printed: list[Value] = []
        proved: list[Value] = []
        kinds = {n.name: n.site.kind for n in moment.normalizers}
        for name, constants in moment.constants.items():
            if kinds[name] in OF_WEIGHTS:
                continue
            value = constants.on_floor or constants.proved
            found[f"constant/{name}"] = value.value
            proved.append(value)
            if constants.printed is not None:
                found[f"printed/{name}"] = constants.printed.value
                printed.append(constants.printed)
        if printed:
            found["product/inverse_sigma_printed_log10"] = product(printed).log10
        if proved:
            found["product/inverse_sigma_proved_log10"] = product(proved).log10
        return found
