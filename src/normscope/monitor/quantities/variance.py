"""Variances before normalizers and activations, on the probe."""

from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot


class Variances(Quantity):
    """Per-channel variance over samples and places before each normalizer and activation: its mean and least value."""

    name = "variance"
    cost = 4
    charts = (
        Chart("variance", "Variance before each normalizer and activation", "log", ("variance/*",), 150),
        Chart("variance-min", "Smallest variance of a channel before each normalizer", "log", ("variance_min/*",), 160),
    )
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
