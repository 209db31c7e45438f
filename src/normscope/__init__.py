"""Normscope: what normalization layers do to your network.

The names below are loaded when they are first used, so that ``import normscope`` stays quick and does not import torch.
"""

from __future__ import annotations

from normscope.core.lazy import lazy_names

__version__ = "0.1.0"

__getattr__, __dir__, __all__ = lazy_names(
    __name__,
    {
        "analyze": "analysis",
        "Options": "analysis",
        "weight_lipschitz": "analysis.weight_lipschitz",
        "check": "doctor",
        "CheckResult": "doctor",
        "fix": "doctor.fixes",
        "Finding": "core.finding",
        "compare": "analysis.compare",
        "Comparison": "analysis.compare",
        "audit": "papers.run",
        "Audit": "papers.run",
        "explain": "papers.explain",
        "Result": "core.result",
        "Value": "core.value",
        "Kind": "core.value",
        "NormscopeError": "core.errors",
        "register_rule": "operators.registry",
        "Monitor": "monitor",
        "Run": "monitor",
        "load_model": "zoo.load",
        "load_data": "zoo.data.load",
        "report_html": "report.html",
        "save_html": "report.html",
    },
    also=("__version__",),
)
