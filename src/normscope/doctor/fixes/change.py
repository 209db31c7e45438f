"""A draft of new weights, with the changes made and those refused."""

import functools
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from normscope.doctor.subject import Subject
from normscope.graph.ir import SOURCES
from normscope.operators.expression import LinearOp


@dataclass(frozen=True, eq=False)
class Change:
    """One change of the weights that does not change the function."""

    kind: str  #: which fix: one of ``normscope.doctor.fixes.run.KINDS``
    place: str  #: module path
    what: str  #: what was changed
    tensors: Mapping[str, Tensor]  #: the new values, by name in the state dict
    code: str = ""  #: what may be changed in the code afterwards; empty if nothing
    training: str = ""  #: how it affects further training

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, with the names of tensors instead of their values."""
        rest = {key: getattr(self, key) for key in ("kind", "place", "what", "code", "training")}
        return rest | {"tensors": sorted(self.tensors)}


@dataclass(frozen=True)
class Refusal:
    """A change that was not made, and why."""

    kind: str
    place: str
    reason: str


class CannotFix(Exception):  # noqa: N818
    """Raised if a change would change the function or cannot be made, with the reason."""


@dataclass(eq=False)
class Draft:
    """The weights while they are being fixed."""

    subject: Subject  #: the examined model; its structure does not change
    state: dict[str, Tensor]  #: the current values by name, after the changes made so far
    changes: list[Change] = field(default_factory=list)  #: changes made so far
    refusals: list[Refusal] = field(default_factory=list)  #: changes that were refused

    def double(self, name: str) -> Tensor:
        """Return the current value of a tensor in float64."""
        return self.state[name].detach().double()

    def apply(self, change: Change) -> None:
        """Make a change, each tensor in its own dtype."""
        self.changes.append(change)
        self.state.update({name: value.to(self.state[name]) for name, value in change.tensors.items()})

    def attempt(self, kind: str, place: str, make: Callable[..., Change | None], *arguments: Any) -> None:
        """Make the change that a function of the draft returns, if any, or record its refusal."""
        try:
            change = make(self, *arguments)
        except CannotFix as reason:
            self.refusals.append(Refusal(kind, place, str(reason)))
        else:
            if change is not None:
                self.apply(change)

    def name_of(self, tensor: Tensor | None) -> str:
        """Return the name of a tensor of the model, or an empty string if it is not one."""
        if tensor is None:
            return ""
        place = tensor.data_ptr(), tensor.numel()
        return next((name for name, t in self.state_sources.items() if (t.data_ptr(), t.numel()) == place), "")

    @functools.cached_property
    def state_sources(self) -> dict[str, Tensor]:
        """Return the tensors of the model's state dict by name, to identify them."""
        return dict(self.subject.model.state_dict(keep_vars=True))

    def is_plain(self, op: LinearOp) -> bool:
        """Return whether a layer's weight is itself a tensor of the state dict, not computed from one."""
        stored, used = self.state_sources.get(op.weight_name), op.data["weight"]
        if stored is None or op.weight_name not in self.state or stored.shape != used.shape:
            return False
        return bool((stored.detach().double() == used.double()).all())

    def is_used_once(self, name: str) -> bool:
        """Return whether exactly one operation reads a tensor; otherwise a change would affect another one."""
        return self._readers[name] == 1

    @functools.cached_property
    def _readers(self) -> Counter[str]:
        graph = self.subject.graph
        users = graph.users()
        found: Counter[str] = Counter()
        for node in graph:
            if node.op in SOURCES and node.target:
                found[node.target] += len(users[node.name])
        return found


Fix = Callable[[Draft], None]
