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
    "Lipschitz constant": "the most the output can move when the input moves by 1, in the l2 norm",
    "norm": "of a layer: the most it can stretch a vector, its largest singular value",
    "normalizer": "a layer that divides by a spread: BatchNorm, LayerNorm, GroupNorm, InstanceNorm, RMSNorm, ...",
    "folded": (
        "a layer together with the fixed normalization after it, ||diag(gamma/sigma) W||: "
        "rescaling the weight does not change it"
    ),
    "width": "the distance between certified and attained, relative to attained",
    "over attained": "a bound divided by the attained value: the most it can be above the truth",
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
    "first look": "what is known within seconds: the same guarantees, with looser bounds",
    "gap": "the distance between certified and attained, step by step along the network",
    "hot channel": "a channel whose factor or variance is more than three times the median of its normalizer",
    "least std": "the smallest standard deviation a normalizer divides by, in the data or in its running statistics",
    "finding": "a problem or remark of the doctor about one place of the model, with a code such as NS101",
    "error": "a finding that makes results wrong",
    "warning": "a finding that costs accuracy, stability or time",
    "info": "a finding worth knowing; nothing has to change",
    "proved": "of a finding: it follows from the graph and the weights",
    "likely": "of a finding: usually true, from experience",
    "confidence": "the probability that a statement about most inputs is right, over the draw of the data points",
    "radius": "the l2 distance from a data point within which a bound holds",
    "verdict": (
        "the three sentences every view starts with: what moving the input does, what "
        "normalization does, what to do next"
    ),
}
WORDS = KINDS | OTHERS
