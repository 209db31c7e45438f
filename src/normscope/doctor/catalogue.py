"""All rules by code: each is a file in the folder ``rules``, and needs no other registration."""

from dataclasses import replace
from types import ModuleType

from normscope.core.lazy import modules_in
from normscope.doctor.rule import Rule


def _rule_of(module: ModuleType) -> Rule:
    """Return the rule of a file, with its name and its functions ``check`` and, if there is one, ``check_history``."""
    name = module.__name__.rpartition(".")[2].replace("_", "-")
    return replace(module.RULE, name=name, check=module.check, check_history=getattr(module, "check_history", None))


#: Every rule by its code, in order.
RULES = {rule.code: rule for rule in sorted(map(_rule_of, modules_in("normscope.doctor.rules")), key=lambda r: r.code)}
