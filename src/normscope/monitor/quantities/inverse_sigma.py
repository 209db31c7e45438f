"""What the normalizers multiply with: the papers' product of ``1/sigma`` as printed, and the constants as proved."""

from __future__ import annotations

from dataclasses import replace

from normscope.core.value import Kind, Value, product
from normscope.monitor.quantity import Description, Quantity
from normscope.monitor.snapshot import Snapshot
from normscope.operators.normalizer import acts_on_weights, site_constants
from normscope.operators.site import Site

#: With fixed statistics this is no restriction.
ABOVE_PROBE = "inputs whose normalizer stds stay above those on the probe"


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
            log10=True,
        ),
        Description(
            "product/inverse_sigma_proved_log10",
            Kind.CERTIFIED,
            "product of the proved constants, including the scale; changes with the scale of the weights",
            "normscope F1",
            log10=True,
            domain=ABOVE_PROBE,
        ),
        Description(
            "product/inverse_sigma_slides_log10",
            Kind.PRINTED,
            "product of the constants as printed on the slides, including the scale",
            "than2025slides BN",
            log10=True,
        ),
        Description(
            "product/inverse_sigma_unscaled_log10",
            Kind.CERTIFIED,
            "product of the proved constants of the normalizers without their scales",
            "normscope F1",
            log10=True,
            domain=ABOVE_PROBE,
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the constants of each normalizer and their products; that of the slides only if all have one."""
        found: dict[str, float] = {}
        values: dict[str, list[Value | None]] = {"printed": [], "proved": [], "slides": [], "unscaled": []}
        for name, site in {n.name: n.site for n in moment.normalizers}.items():
            if acts_on_weights(site):
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
            floor = moment.look.floors.get(name)
            plain = site_constants(_unscaled(site), None if floor is None else floor.cpu(), "running")
            values["proved"].append(proved)
            values["slides"].append(constants.slides)
            values["unscaled"].append(plain.on_floor or plain.proved)
        for key, each in values.items():
            known = [v for v in each if v is not None]
            if known and len(known) == len(each):
                found[f"product/inverse_sigma_{key}_log10"] = product(known).log10
        return found


def _unscaled(site: Site) -> Site:
    """Return a normalizer without its scale, on the CPU, where constants are computed."""
    running = None if site.running is None else (site.running[0].cpu(), site.running[1].cpu())
    return replace(site, gamma=None, running=running)
