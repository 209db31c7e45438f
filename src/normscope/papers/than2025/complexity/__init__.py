"""Iteration counts that follow from Lipschitz constants: as printed, and as the theorems behind them say."""

from __future__ import annotations

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "convex_upper": "convex",
        "convex_lower": "convex",
        "strongly_convex_upper": "convex",
        "strongly_convex_lower": "convex",
        "goldstein": "nonconvex",
        "corollary_18": "printed",
        "corollary_19": "printed",
        "printed_lower_bounds": "printed",
        "slides_rates": "printed",
        "LayerComplexity": "layers",
        "Setting": "layers",
        "layer_complexities": "layers",
        "of_result": "layers",
        "seen_as_chain": "layers",
        "WeightComplexity": "weight_complexity",
        "of_weights": "weight_complexity",
    },
)
