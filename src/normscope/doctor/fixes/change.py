"""A draft of new weights: what was changed, what was refused and why."""

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
    """One change of the weights that leaves the function as it is."""

    kind: str  #: which fix: one of ``normscope.doctor.fixes.run.KINDS``
    place: str  #: module path
    what: str  #: what was done
    tensors: Mapping[str, Tensor]  #: the new values, by name in the state dict
    code: str = ""  #: what a person may change in the code after it; empty if nothing
    training: str = ""  #: what it means for training on

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, names of tensors in the place of their values."""
        rest = {key: getattr(self, key) for key in ("kind", "place", "what", "code", "training")}
        return rest | {"tensors": sorted(self.tensors)}


@dataclass(frozen=True)
class Refusal:
    """Something that was left alone, and why."""

    kind: str
    place: str
    reason: str


class Refused(Exception):  # noqa: N818
    """Raised where a change would not leave the function as it is, or cannot be carried out: says why."""


@dataclass(eq=False)
class Draft:
    """The weights while they are mended."""

    subject: Subject  #: the model, looked at once; its structure does not change
    state: dict[str, Tensor]  #: the present values by name; reading them gives what earlier changes left
    changes: list[Change] = field(default_factory=list)  #: what was done so far
    refusals: list[Refusal] = field(default_factory=list)  #: what was not

    def double(self, name: str) -> Tensor:
        """Return the present value of a tensor in float64."""
        return self.state[name].detach().double()

    def apply(self, change: Change) -> None:
        """Carry out a change, each tensor in its own dtype."""
        self.changes.append(change)
        self.state.update({name: value.to(self.state[name]) for name, value in change.tensors.items()})

    def attempt(self, kind: str, place: str, make: Callable[..., Change | None], *arguments: Any) -> None:
        """Carry out the change that a function of the draft makes, if any; note what is left alone if it refuses."""
        try:
            change = make(self, *arguments)
        except Refused as reason:
            self.refusals.append(Refusal(kind, place, str(reason)))
        else:
            if change is not None:
                self.apply(change)

    def name_of(self, tensor: Tensor | None) -> str:
        """Return the name of a tensor of the model, or an empty text if it is none."""
        if tensor is None:
            return ""
        place = tensor.data_ptr(), tensor.numel()
        return next((name for name, t in self.state_sources.items() if (t.data_ptr(), t.numel()) == place), "")

    @functools.cached_property
    def state_sources(self) -> dict[str, Tensor]:
        """Return the model's own tensors by name in its state dict, for recognizing them."""
        return dict(self.subject.model.state_dict(keep_vars=True))

    def is_plain(self, op: LinearOp) -> bool:
        """Return whether a layer's weight is a tensor of the state dict as it is, not computed from one."""
        stored, used = self.state_sources.get(op.weight_name), op.data["weight"]
        if stored is None or op.weight_name not in self.state or stored.shape != used.shape:
            return False
        return bool((stored.detach().double() == used.double()).all())

    def is_used_once(self, name: str) -> bool:
        """Return whether exactly one operation reads a tensor: otherwise another would notice that it changed."""
        return self._readers[name] == 1

    @functools.cached_property
    def _readers(self) -> Counter[str]:
        """Return by how many operations each tensor is read."""
        graph = self.subject.graph
        users = graph.users()
        found: Counter[str] = Counter()
        for node in graph:
            if node.op in SOURCES and node.target:
                found[node.target] += len(users[node.name])
        return found


Fix = Callable[[Draft], None]
