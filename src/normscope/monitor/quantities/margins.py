"""Margins of the correct class on the probe."""

import torch

from normscope.generalization.margins import margins
from normscope.graph.objective import class_scores
from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot


class Margins(Quantity):
    """The minimum, 10 % quantile and median of the margins on the probe, and the accuracy."""

    name = "margins"
    preset = "economy"
    cost = 2
    charts = (Chart("margin", "Margins on the probe", "linear", ("margin/*",), 300, whole=True),)
    describes = (
        Description(
            "margin/*", Kind.ESTIMATE, "margin of the correct class on the probe: minimum, 10 %, median", signed=True
        ),
        Description("probe/accuracy", Kind.ESTIMATE, "share of the probe with a positive margin"),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return quantiles of the margins, if the labels are classes."""
        found = class_scores(moment.probe_pass.outputs, moment.view.labels)
        if found is None:
            return {}
        values = margins(*found).double()
        tenth, median = torch.quantile(values, torch.tensor([0.1, 0.5], dtype=torch.float64, device=values.device))
        return {
            "margin/minimum": float(values.min()),
            "margin/tenth": float(tenth),
            "margin/median": float(median),
            "probe/accuracy": float((values > 0).double().mean()),
        }
