"""Every rule, by code: one file in the folder of rules each, registered by being there."""

from dataclasses import replace
from types import ModuleType

from normscope.core.lazy import modules_in
from normscope.doctor.rule import Rule


def _rule_of(module: ModuleType) -> Rule:
    """Return the rule of a file, with its name and functions: ``look`` and, if there is one, ``over_time``."""
    name = module.__name__.rpartition(".")[2].replace("_", "-")
    return replace(module.RULE, name=name, look=module.look, over_time=getattr(module, "over_time", None))


#: Every rule by its code, in order.
RULES = {rule.code: rule for rule in sorted(map(_rule_of, modules_in("normscope.doctor.rules")), key=lambda r: r.code)}
