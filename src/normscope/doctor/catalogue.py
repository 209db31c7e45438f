"""Every rule, by code."""

from __future__ import annotations

from normscope.core.discovery import modules_in
from normscope.doctor.rule import Rule

#: Every rule by its code, in order: each module of ``doctor/rules`` with a ``RULE`` is one.
RULES: dict[str, Rule] = {
    rule.code: rule
    for rule in sorted(
        (module.RULE for module in modules_in("normscope.doctor.rules") if hasattr(module, "RULE")),
        key=lambda rule: rule.code,
    )
}
