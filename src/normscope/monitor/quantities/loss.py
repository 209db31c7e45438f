"""The loss on the probe."""

from normscope.monitor.quantity import Description, Kind, Quantity, Snapshot


class ProbeLoss(Quantity):
    """``L`` on the fixed probe batch, dropout off."""

    name = "loss"
    preset = "economy"
    cost = 1
    describes = (Description("probe/loss", Kind.ESTIMATE, "loss on the probe batch", signed=True),)

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return the loss, if the probe has labels."""
        return {} if moment.loss is None else {"probe/loss": moment.loss}
