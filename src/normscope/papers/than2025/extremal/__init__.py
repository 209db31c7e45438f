"""Networks that attain or break the bounds: builders with a prescribed constant, to test any Lipschitz tool with."""

from __future__ import annotations

from normscope.core.lazy import lazy_names

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "Extremal": "extremal",
        "GradientExtremal": "prescribed_gradient",
        "Gradients": "explosion",
        "scaled_output": "scaled",
        "theorem_6": "deep_identity",
        "remark_7": "growth",
        "theorem_13": "weight_direction",
        "theorem_13_printed": "weight_direction",
        "l1_loss": "absolute_error",
        "theorem_15": "prescribed_gradient",
        "layer_norm_blow_up": "layer_norm",
        "gradients": "explosion",
    },
)
