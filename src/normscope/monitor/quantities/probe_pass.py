"""What one pass over the probe shows: the loss, margins, and variances before normalizers and activations."""

import torch

from normscope.core.value import Kind
from normscope.generalization.margins import margins
from normscope.graph.objective import class_scores
from normscope.monitor.quantity import Description, Quantity
from normscope.monitor.snapshot import Snapshot


class ProbeLoss(Quantity):
    """``L`` on the fixed probe batch, dropout off."""

    name = "loss"
    cost = 1
    describes = (Description("probe/loss", Kind.ESTIMATE, "loss on the probe batch", signed=True),)

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the loss, if the probe has labels."""
        return {} if moment.loss is None else {"probe/loss": moment.loss}


class Margins(Quantity):
    """The least, tenth and median margin on the probe, and the share of samples classified right."""

    name = "margins"
    cost = 2
    describes = (
        Description(
            "margin/*", Kind.ESTIMATE, "margin of the correct class on the probe: minimum, 10 %, median", signed=True
        ),
        Description("probe/accuracy", Kind.ESTIMATE, "share of the probe with a positive margin"),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return quantiles of the margins, if the labels are classes."""
        found = class_scores(moment.look.outputs, moment.view.labels)
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


class Variances(Quantity):
    """Per-channel variance over samples and places before each normalizer and activation: its mean and least value."""

    name = "variance"
    cost = 4
    describes = (
        Description("variance/*", Kind.ESTIMATE, "mean over channels of the variance before it, on the probe"),
        Description(
            "variance_min/*", Kind.ESTIMATE, "smallest variance of a channel before a normalizer, on the probe"
        ),
    )

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the mean variance before each, and the least one before each normalizer."""
        look = moment.look
        found = {f"variance/{name}": float(v.mean()) for name, v in (look.variances | look.activations).items()}
        return found | {f"variance_min/{name}": float(v.min()) for name, v in look.variances.items()}
