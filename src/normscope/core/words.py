"""The words that results and reports use, and what they mean: one place for ``explain``, the page and the docs."""

from __future__ import annotations

#: What stands beside a number: what it guarantees.
KINDS = {
    "certified": "an upper bound in exact real arithmetic for the stored weights, our own rounding included",
    "probabilistic": "an upper bound that fails with probability at most delta, from a random start vector",
    "attained": "a lower bound: there is an input, or a pair of inputs, that shows it",
    "printed": "a paper's formula with these numbers put in; not a bound unless that is said",
    "estimate": "neither a bound nor attained, e.g. the ratio of two bounds",
    "measured": "seen in the data, or in the running statistics; it says nothing about other inputs",
}
#: Every other word of the output.
OTHERS = {
    "all inputs": "every input whatever, also those that look like nothing in the data; bounds there are largest",
    "variance floor": "the inputs at which every normalizer sees at least the standard deviation it saw in the data",
    "around the data": "balls around data points: a bound there holds for most inputs like the data, with a confidence",
    "stacked batch": "a whole batch as one input, as BatchNorm in training sees it",
    "Lipschitz constant": "the most by which the output can move when the input moves by 1, in the l2 norm",
    "norm": "of a layer: the most by which it can stretch a vector, its largest singular value",
    "normalizer": "a layer that divides by a spread: BatchNorm, LayerNorm, GroupNorm, InstanceNorm, RMSNorm, ...",
    "folded": "a layer together with the fixed normalization after it, ||diag(gamma/sigma) W||: rescaling the weight "
    "leaves it as it is",
    "width": "how far apart certified and attained are, relative to attained",
    "over attained": "a bound over what was attained: how far it may be from the truth at most",
    "mode": "what BatchNorm uses: its running statistics (evaluation), those of the batch (training), or those of one "
    "batch held fixed",
    "running": "BatchNorm with its running statistics, as in evaluation",
    "batch": "BatchNorm with the statistics of the batch, as in training; the whole batch is then one input",
    "frozen-batch": "BatchNorm with the statistics of the first batch, held fixed",
    "coverage": "how many operations a rule understands, and the share of the parameters behind them",
    "understood": "a rule gives the operation a constant; bounds through others are infinite, never skipped",
    "first look": "what is known within seconds: the same guarantees, only looser bounds",
    "gap": "the distance between certified and attained, step by step along the network",
    "hot channel": "a channel whose factor or variance is more than three times the median of its normalizer",
    "least std": "the smallest standard deviation a normalizer divides by, in the data or in its running statistics",
    "finding": "something the doctor found at a place of the model, with a code such as NS101",
    "error": "a finding that makes results wrong",
    "warning": "a finding that costs accuracy, stability or time",
    "info": "a finding worth knowing; nothing has to change",
    "proved": "of a finding: it follows from the graph and the weights",
    "likely": "of a finding: it is usually so, from experience",
    "confidence": "the probability with which a statement about most inputs is right, over the draw of the data points",
    "radius": "the l2 distance from a data point within which a bound holds",
    "verdict": "the three sentences every view opens with: what moving the input does, what normalization does, what "
    "to do next",
}
WORDS = KINDS | OTHERS
