"""Rotate residual streams so that no channel is an outlier before quantization."""

from normscope.doctor.fixes.change import Change, Draft, Refusal
from normscope.geometry.function import function_of
from normscope.geometry.rotate import rotate

KIND = "rotate"


def rotate_streams(draft: Draft) -> None:
    """Rotate the channels of every residual stream that allows it, after folding the gains."""
    function = function_of(draft.subject.captured, mode="running")
    done, reasons = rotate(function)
    draft.refusals += [Refusal(KIND, "", reason) for reason in reasons]
    for found in done:
        aliases = {name: first for name, first in function.aliases.items() if first in found.state}
        new = {**found.state, **{name: found.state[first] for name, first in aliases.items()}}
        what = (
            f"{found.width} channels rotated; largest over median: {found.before:.3g} before, {found.after:.3g} after"
        )
        kept = {name: value for name, value in new.items() if name in draft.state}
        draft.apply(Change(KIND, "", what, kept, "", "changed: Adam depends on the choice of axes"))
