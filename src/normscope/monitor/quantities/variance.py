"""Variances before normalizers and activations, on the probe."""

from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot


class Variances(Quantity):
    """Mean and minimum of the per-channel variances before each normalizer and activation."""

    name = "variance"
    preset = "economy"
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
        """Return the mean variance before each, and the smallest before each normalizer."""
        normalizers, activations = moment.probe_pass.variances, moment.probe_pass.activations
        found = {f"variance/{name}": float(v.mean()) for name, v in (normalizers | activations).items()}
        return found | {f"variance_min/{name}": float(v.min()) for name, v in normalizers.items()}
