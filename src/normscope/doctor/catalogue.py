"""Every rule, by code: one file in the folder of rules each, registered by being there."""

from normscope.core.lazy import modules_in
from normscope.doctor.rule import Rule

_FILES = modules_in("normscope.doctor.rules")

#: Every rule by its code, in order.
RULES: dict[str, Rule] = {rule.code: rule for rule in sorted((m.RULE for m in _FILES), key=lambda r: r.code)}
