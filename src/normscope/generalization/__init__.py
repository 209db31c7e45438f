"""Generalization: where the error of a trained model comes from, and which guarantees hold for it."""

from __future__ import annotations

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Decomposition": "decomposition",
        "decompose": "decomposition",
        "Problem": "synthetic",
        "Run": "synthetic",
        "train_synthetic": "synthetic",
        "Partition": "partition",
        "grid": "partition",
        "voronoi": "partition",
        "g_paper": "cell_terms",
        "g_tight": "cell_terms",
        "g_total_variation": "cell_terms",
        "PartitionBound": "theorem_20",
        "partition_bound": "theorem_20",
        "theorem_20_printed": "theorem_20",
        "vc_bound": "vc",
        "vc_dimension_linear": "vc",
        "vc_bound_printed": "vc",
        "pac_bayes_bound": "pac_bayes",
        "pac_bayes_printed": "pac_bayes",
        "weight_norm_rates": "weight_norms",
    },
)
