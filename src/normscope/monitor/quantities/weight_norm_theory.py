"""What the theory of weight normalization proves about the next step of a run."""

import math

from normscope.core.errors import InputError
from normscope.monitor.quantity import Chart, Description, Kind, Quantity, Snapshot
from normscope.weight_normalization.certified_step import Moment, certify_step

_STEP = "a plain gradient step on the probe"


def theory_metrics(moment: Moment) -> dict[str, float]:
    """Return what is proved about the next step; values that are not finite are left out."""
    found = {
        "weight_norm/smoothness": moment.certificate.smoothness,
        "weight_norm/predictor_hessian": moment.predictor_hessian,
        "weight_norm/largest_certified_step": moment.largest_certified_step,
        "weight_norm/contraction": moment.certificate.contraction,
        "weight_norm/strong_convexity": moment.strong_convexity,
        "weight_norm/ratio": moment.ratio,
        "weight_norm/least_norm": moment.least_norm,
    }
    return {name: value for name, value in found.items() if math.isfinite(value)}


class WeightNormTheory(Quantity):
    """Smoothness, largest certified step, proved contraction and strong convexity of a weight-normalized network.

    For the square loss; class labels are one-hot encoded. Models that the theory does not cover, and targets whose
    shape differs from the output, have no metrics.
    """

    name = "weight_norm_theory"
    cost = 16
    charts = (
        Chart(
            "weight-norm",
            "Proved statements about the next step with weight normalization",
            "log",
            ("weight_norm/*",),
            270,
        ),
    )
    describes = (
        Description("weight_norm/smoothness", Kind.CERTIFIED, f"norm of the Hessian of the square loss, along {_STEP}",
                    "normscope Proposition WN-8"),
        Description("weight_norm/predictor_hessian", Kind.CERTIFIED, "norm of the Hessian of the predictor",
                    "normscope Proposition WN-6"),
        Description("weight_norm/largest_certified_step", Kind.LOWER, "step size proved to decrease the loss",
                    "normscope Proposition WN-10"),
        Description("weight_norm/contraction", Kind.CERTIFIED, f"proved factor on the loss for {_STEP}",
                    "normscope Proposition WN-10"),
        Description("weight_norm/strong_convexity", Kind.LOWER, "alpha of restricted strong convexity along that step",
                    "normscope Proposition WN-9", signed=True),
        Description("weight_norm/ratio", Kind.ESTIMATE, "squared norm of the gradient over the square loss",
                    "cisneros2025 Mechanism 3 (ratio)"),
        Description("weight_norm/least_norm", Kind.ESTIMATE, "smallest norm of a weight vector of a hidden layer",
                    "cisneros2025 Mechanism 3 (norm)"),
    )  # fmt: skip

    def measure(self, moment: Snapshot) -> dict[str, float]:
        """Return what is proved at this step, or nothing if the theory does not apply."""
        view = moment.view
        inputs = [value for value in view.inputs if value.is_floating_point()]
        if view.labels is None or len(inputs) != 1:
            return {}
        try:
            return theory_metrics(certify_step(view.model, inputs[0], view.labels))
        except InputError:
            return {}
