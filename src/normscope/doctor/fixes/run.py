"""``fix``: new weights that compute the same function, and suggested changes of the code."""

import contextlib
import errno
import itertools
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from normscope.core.display import Shown
from normscope.core.errors import CaptureError, InputError, NonFiniteError
from normscope.core.files import Saved, replacing
from normscope.doctor.fixes.balance import balance_pairs
from normscope.doctor.fixes.cancelled_bias import drop_biases
from normscope.doctor.fixes.change import Change, Draft, Fix, Refusal
from normscope.doctor.fixes.fold import fold_normalizers
from normscope.doctor.fixes.rotate import rotate_streams
from normscope.doctor.fixes.unit_norm import unit_norms
from normscope.doctor.fixes.verify import RELATIVE, Difference, difference, far_from
from normscope.doctor.subject import Progress, Subject, examine
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs, guess_inputs, iterate
from normscope.graph.repeatable_data import repeatable
from normscope.graph.wrappers import require_module, uncompiled

#: Every fix by name, in the order in which they are applied.
KINDS: dict[str, Fix] = {
    "drop-bias": drop_biases,
    "fold": fold_normalizers,
    "balance": balance_pairs,
    "unit-norm": unit_norms,
    "rotate": rotate_streams,
}
#: Fixes that are applied only on request.
ON_REQUEST = ("rotate",)
#: Largest relative change of outputs far from the data, where rounding may be amplified.
FAR = 1e-3
#: Number of batches of the data on which the function is verified.
BATCHES = 4
State = dict[str, Tensor]
ENDINGS = (".safetensors", ".pt")


@dataclass(frozen=True, eq=False, repr=False)
class FixResult(Saved, Shown):
    """The result of ``fix``.

    Attributes:
        model: name of the model.
        changes: what was changed; the function was verified to be the same.
        refusals: what was not changed, and why.
        difference: largest relative difference of outputs that was measured.
        samples: number of samples on which it was measured.
        state: the new state dict, for the model's unchanged code.
    """

    _layout = ("normscope.report.fixes", "fix_sections")
    _rows = "changes"

    model: str
    changes: tuple[Change, ...]
    refusals: tuple[Refusal, ...]
    difference: float
    samples: int
    state: dict[str, Tensor] = field(repr=False)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, without the weights."""
        from normscope import __version__

        return {
            "schema_version": 1,
            "kind": "fix",
            "normscope": __version__,
            "model": self.model,
            "changes": [change.to_dict() for change in self.changes],
            "refusals": [asdict(refusal) for refusal in self.refusals],
            "difference": self.difference,
            "samples": self.samples,
        }

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the new state dict atomically, as ``.safetensors`` or ``.pt``.

        Raises:
            InputError: if the file has another ending.
        """
        target = Path(path)
        if target.suffix not in ENDINGS:
            raise InputError(f"Expected a file ending in {' or '.join(ENDINGS)}, got {target.name}.")
        tensors = {name: tensor.detach().cpu().clone().contiguous() for name, tensor in self.state.items()}
        with replacing(target) as temporary, _as_os_error(target):
            if target.suffix == ".pt":
                torch.save(tensors, temporary)
            else:
                from safetensors.torch import save_file

                save_file(tensors, temporary)
        return target


@contextlib.contextmanager
def _as_os_error(target: Path) -> Iterator[None]:
    """Turn exceptions of torch and safetensors when a file cannot be written, e.g. on a full disk, into OSError."""
    from safetensors import SafetensorError

    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        first = next(iter(str(error).splitlines()), type(error).__name__)
        reason = f"Could not write the weights completely ({first}). Is the disk full?"
        raise OSError(errno.EIO, reason, str(target)) from error


def fix(
    model: nn.Module,
    data: Any = None,
    *,
    only: str | Iterable[str] = (),
    name: str = "",
    input_shape: tuple[int, ...] | None = None,
    limit: int | None = None,
    seed: int = 0,
    progress: Progress | None = None,
) -> FixResult:
    """Fix the weights of a network where its function (in evaluation) stays the same; the model is not changed.

    Args:
        model: any PyTorch module in float32 or float64.
        data: inputs as for ``analyze``; the function is also verified on them.
        only: name or names of the fixes to apply, of :data:`KINDS`; by default all but those of :data:`ON_REQUEST`.
        name: name of the model in the result.
        input_shape: shape of one input without batch axis, if there is no data and it cannot be guessed.
        limit: use at most this many samples of the data.
        seed: random seed.
        progress: called with a line of text at each step.

    Returns:
        The new state dict, the changes, and the refused changes.

    Raises:
        NormscopeError: a subclass, if an argument is invalid or the model cannot be captured.

    >>> result = fix(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), input_shape=(3, 8, 8), only=["drop-bias"])
    >>> [change.place for change in result.changes], float(result.state["0.bias"].abs().max())
    (['0'], 0.0)
    """
    wanted = (only,) if isinstance(only, str) else tuple(only)
    unknown = sorted(set(wanted) - set(KINDS))
    if unknown:
        raise InputError(f"Unknown fixes: {', '.join(unknown)}. Choose from: {', '.join(KINDS)}.")
    require_module(model)
    model, data, say = uncompiled(model), repeatable(data), progress or (lambda text: None)
    narrow = sorted({str(p.dtype) for p in model.parameters() if p.is_floating_point() and p.element_size() < 4})
    if narrow:  # rounding would hide whether the function changed
        raise InputError(
            f"Expected a model in float32 or float64, but it has weights in {', '.join(narrow)}. Use model.float()."
        )
    with untouched(model):
        subject = examine(model, data, input_shape=input_shape, limit=limit, seed=seed, progress=progress)
        if subject.non_finite:
            raise NonFiniteError(subject.non_finite)
        if not subject.has("program"):
            raise CaptureError(f"Cannot fix a model without a graph: {subject.failure}")
        before = {k: v.detach() for k, v in model.state_dict().items() if isinstance(v, Tensor)}
        batches = _inputs(model, data, input_shape, seed)
        far = list(far_from(model, batches[0]))
        say("fixing")
        steps = [KINDS[kind] for kind in KINDS if kind in wanted or not (wanted or kind in ON_REQUEST)]
        draft = _verified(subject, before, steps, lambda state: _change(model, before, state, batches, far), say)
        off = _change(model, before, draft.state, batches, far)
    if not off.is_rounding:
        raise InputError(f"The fixes would change the function: {_described(off)}. Nothing was returned.")
    state = {key: tensor.clone() for key, tensor in draft.state.items()}
    title = name or type(model).__name__
    return FixResult(title, _consistent(draft.changes), tuple(draft.refusals), off.relative, off.samples, state)


def _consistent(changes: list[Change]) -> tuple[Change, ...]:
    """Return the changes without advice to remove what a later one uses: a folded shift is stored in the bias."""
    kept = []
    for i, change in enumerate(changes):
        later = {name for other in changes[i + 1 :] for name in other.tensors}
        again = change.kind == "drop-bias" and any(n in later for n in change.tensors if not n.endswith("running_mean"))
        kept.append(replace(change, what=f"{change.what}; a later fix uses it again", code="") if again else change)
    return tuple(kept)


def _verified(
    subject: Subject, before: State, steps: list[Fix], change_of: Callable[[State], Difference], say: Progress
) -> Draft:
    """Return a draft with the changes that do not change the function; the others become refusals."""
    draft = Draft(subject, dict(before))
    for step in steps:
        fresh = Draft(subject, dict(draft.state), list(draft.changes), list(draft.refusals))
        step(fresh)
        new = fresh.changes[len(draft.changes) :]
        draft.refusals = fresh.refusals
        if not new:
            continue
        say(f"verifying {new[0].kind}")
        if change_of(fresh.state).is_rounding:
            draft = fresh
            continue
        for change in new:  # one by one, to keep those that pass
            state = dict(draft.state) | {n: v.to(draft.state[n]) for n, v in change.tensors.items()}
            off = change_of(state)
            if off.is_rounding:
                draft.apply(change)
            else:
                draft.refusals.append(Refusal(change.kind, change.place, _described(off)))
    return draft


def _change(
    model: nn.Module, before: State, after: State, batches: list[ModelInputs], far: list[ModelInputs]
) -> Difference:
    """Return how far other weights change the outputs on the data, or far from it if they change there by more."""
    near, away = (difference(model, before, after, some) for some in (batches, far))
    return near if away.relative <= FAR else replace(near, relative=max(near.relative, away.relative))


def _described(off: Difference) -> str:
    if off.relative > RELATIVE or off.variation is None:
        return f"the outputs would change by {off.relative:.2g} (relative)"
    return f"the outputs would change by {off.variation:.2g} of their variation between samples"


def _inputs(model: nn.Module, data: Any, shape: tuple[int, ...] | None, seed: int) -> list[ModelInputs]:
    """Return inputs for verification: from the data, or guessed ones and random ones of the same shapes."""
    if data is not None:
        return list(itertools.islice(iterate(data, model), BATCHES))
    guessed = guess_inputs(model, shape, batch=4)
    generator = torch.Generator().manual_seed(seed)
    others = [guessed]
    for scale in (1.0, 10.0):

        def drawn(value: Any, scale: float = scale) -> Any:
            if not isinstance(value, Tensor) or not value.is_floating_point():
                return value
            return (torch.randn(value.shape, generator=generator) * scale).to(value)

        others.append(ModelInputs(tuple(map(drawn, guessed.args)), {k: drawn(v) for k, v in guessed.kwargs.items()}))
    return others
