"""The words that results and reports use, and what they mean: one place for ``explain``, the page and the docs."""

#: What stands beside a number: what it guarantees.
KINDS = {
    "certified": ("an upper bound in exact real arithmetic for the stored weights, including our own rounding errors"),
    "probabilistic": "an upper bound that fails with probability at most delta, over a random start vector",
    "attained": "a lower bound: an input, or a pair of inputs, that reaches it was found",
    "printed": "a paper's formula evaluated for this network; not a bound unless it says so",
    "estimate": "neither a bound nor attained, e.g. the ratio of two bounds",
    "measured": "seen in the data, or in the running statistics; says nothing about other inputs",
}
#: Every other word of the output.
OTHERS = {
    "all inputs": ("every possible input, including those that look nothing like the data; bounds are largest there"),
    "variance floor": ("the inputs at which every normalizer sees at least the standard deviation it saw in the data"),
    "around the data": (
        "balls around data points: a bound there holds for most inputs like the data, with the stated confidence"
    ),
    "stacked batch": "a whole batch as one input, as BatchNorm in training sees it",
    "domain": "the inputs for which a number holds",
    "Lipschitz constant": "the most the output can move when the input moves by 1, in the l2 norm",
    "norm": "of a layer: the most it can stretch a vector, its largest singular value",
    "product of norms": (
        "the bound composed step by step from the constants of layers and operations, without multiplier chains"
    ),
    "normalizer": "a layer that divides by a spread: BatchNorm, LayerNorm, GroupNorm, InstanceNorm, RMSNorm, ...",
    "folded": (
        "a layer together with the fixed normalization after it, ||diag(gamma/sigma) W||: "
        "rescaling the weight does not change it"
    ),
    "width": "the distance between certified and attained, relative to attained",
    "over attained": "a bound divided by the attained value: the most it can be above the truth",
    "searched everywhere": (
        "the largest attained value of a search that starts at the best data points and may leave the domain of the "
        "data; compare it with the bound on all inputs"
    ),
    "largest Jacobian": (
        "the largest norm of the derivative that was found at the data points themselves, or at random points without "
        "data"
    ),
    "mode": (
        "the statistics BatchNorm uses: running (evaluation), those of the batch (training), or "
        "those of one fixed batch"
    ),
    "running": "BatchNorm with its running statistics, as in evaluation",
    "batch": "BatchNorm with the statistics of the batch, as in training; the whole batch is then one input",
    "frozen-batch": "BatchNorm with the statistics of the first batch, kept fixed",
    "coverage": "how many operations have a rule, and their share of the parameters",
    "understood": (
        "there is a rule with a constant for the operation; bounds through other operations are infinite, never skipped"
    ),
    "operations": "the steps of the network's graph that depend on the input: layers, activations, sums and so on",
    "first look": "what is known within seconds: the same guarantees, with looser bounds",
    "gap": "the distance between certified and attained, step by step along the network",
    "decades": "factors of ten: +1 is a factor of 10, +0.3 a factor of 2",
    "activation patterns": (
        "the slopes that the activations have at an input, e.g. 0 or 1 for each entry of a ReLU; as a cause of the "
        "gap: the bound allows combinations of slopes that may belong to no input"
    ),
    "chains": (
        "multiplier chains: one certificate for a whole part of the network instead of a product of norms; as a cause "
        "of the gap: what they change, negative where they tighten the bound"
    ),
    "floor of chain bounds": (
        "a value that is attained if every activation may choose its slope freely, whatever the input: no bound by "
        "multiplier chains can be smaller, but the Lipschitz constant can"
    ),
    "hot channel": "a channel whose factor or variance is more than three times the median of its normalizer",
    "least std": "the smallest standard deviation a normalizer divides by, in the data or in its running statistics",
    "finding": "what the doctor reports about one place of the model, with a code such as NS101",
    "error": "a finding that makes results wrong",
    "warning": "a finding that costs accuracy, stability or time",
    "info": "a finding worth knowing; nothing has to change",
    "proved": "of a finding: it follows from the graph and the weights",
    "likely": "of a finding: usually true, from experience",
    "confidence": "the probability that a statement about most inputs is right, over the draw of the data points",
    "radius": "the l2 distance from a data point within which a bound holds",
    "decisions": (
        "the classes with the largest output; one is proved not to change within a distance if no input within it "
        "from the data point has another class"
    ),
    "sketch": (
        "with --sketch: random combinations of the input directions instead of all of them; constants around data "
        "points of deep ReLU networks take less time, and may be wrong with a probability below 1e-9"
    ),
    "verdict": (
        "the three sentences every view starts with: what moving the input does, what "
        "normalization does, what to do next"
    ),
    "vacuous": "of a bound on the error: it says no more than random guessing, that is, it is at least 1 - 1/classes",
    "informative": "of a bound on the error: it is below the error of random guessing, so not vacuous",
    "certificate": "a bound that is proved; among bounds on the error, one that fails with probability at most delta",
    "scale only": (
        "of a bound on the error: as printed in a paper, which omits constants or conditions, so it is no bound"
    ),
    "refused": "of a bound: it does not apply to this network or to these data; the reason stands beside it",
    "held-out": (
        "samples that were used neither for training nor for choosing the network; as a bound: the one on the "
        "error from the test samples alone"
    ),
    "converged": "of an eigenvalue: its residual is within the requested tolerance",
    "residual": (
        "of an eigenvalue: a true eigenvalue lies within this distance of it; as a matrix of the curvature: the "
        "Hessian minus the Gauss-Newton matrix"
    ),
    "stable rank": "of a matrix: its squared Frobenius norm over its squared spectral norm, at most its rank",
    "scale-invariant": (
        "of a weight: multiplying it by a positive number does not change the function, because a normalizer "
        "follows; exactly so only for eps = 0"
    ),
    "orbit": (
        "the parameters that a symmetry reaches from the present ones: along it the outputs do not change, exactly so "
        "for eps = 0"
    ),
    "drift": (
        "of a BatchNorm: how far its running statistics are from those of the probe, in its median channel: the "
        "larger of the shift of the mean in running standard deviations and the logarithm of the factor of the "
        "variance"
    ),
    "effective rate": (
        "the learning rate over the squared norm of a weight: how fast the direction of a scale-invariant weight moves"
    ),
    "multiplier chains": (
        "one certificate for a whole part of the network instead of a product of norms; it uses that the slopes "
        "of each activation lie in a known interval"
    ),
    "attained by free slopes": (
        "of the floor of chain bounds: reached if every activation may choose its slope freely, perhaps by no input"
    ),
    "eps": (
        "the small number a normalizer adds to the variance before it takes the root, so that it never divides by less "
        "than sqrt(eps)"
    ),
}
WORDS = KINDS | OTHERS
