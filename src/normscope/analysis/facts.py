"""Everything around the numbers: coverage, input, statistics, what the normalizers change, messages."""

import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from normscope.analysis.context import Work, shapes_of, where_fixed
from normscope.core.errors import attempt
from normscope.core.result import Coverage, LayerResult, NormalizerResult, OpaqueOperation, Result, Rows
from normscope.core.value import Kind, Value, product
from normscope.graph.capture import Captured
from normscope.graph.module_tree import fold
from normscope.operators.program import Program


def gathered(work: Work, name: str, constants: dict[str, Value | None], **rest: Any) -> Result:
    """Return the result of an analysis, each table by itself: one that fails takes no other along."""
    told, graph = work.messages, work.captured.graph
    return Result(
        model=model_facts(work, name),
        input=input_facts(work),
        coverage=coverage(work.program, work.captured),
        normalizers=Rows(work.normalizers),
        layers=Rows(work.layers),
        end_to_end=constants,
        effect=attempt("what normalizers change", lambda: effect(work.normalizers, work.layers, constants), {}, told),
        statistics=attempt("the statistics of the data", lambda: statistics(work), {}, told),
        blocks=attempt("the tree of modules", lambda: tuple(b.to_dict() for b in fold(graph)), (), told),
        messages=attempt("a part of these messages", lambda: tuple(messages(work)), (), told) or tuple(told),
        **rest,
    )


def coverage(program: Program, captured: Captured) -> Coverage:
    """Return how much was understood."""
    rules = [expr.atom for expr in program.opaque]
    opaque = [OpaqueOperation(rule.name, rule.op, rule.owner, rule.reason, rule.known) for rule in rules]
    unknown = {o.name for o in opaque if not o.known}
    parameters = {n.target for n in captured.graph if n.op == "parameter"}
    total = sum(v.numel() for k, v in captured.tensors.items() if k in parameters)
    lost = {w for name in unknown for w in program.used_weights.get(name, ())}
    missing = sum(captured.tensors[w].numel() for w in lost if w in captured.tensors)
    share = 1.0 if total == 0 else (total - missing) / total
    return Coverage(program.total, program.total - len(unknown), share, total, tuple(opaque))


def model_facts(work: Work, name: str) -> dict[str, Any]:
    """Return facts about the model and how it was looked at."""
    from normscope import __version__

    graph, model, options = work.captured.graph, work.model, work.options
    return {
        "name": name,
        "class": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "front_end": graph.front_end,
        "batch": graph.batch,
        "mode": options.mode,
        "norm": "l2",
        "normscope": __version__,
        "torch": torch.__version__,
        "notes": list(graph.notes),
        "options": {k: getattr(options, k) for k in ("tolerance", "delta", "seed")},
    }


def input_facts(work: Work) -> dict[str, Any]:
    """Return what counts as the network input."""
    program = work.program
    return {
        "blocks": [{"name": b.name, "shape": list(b.shape), "kind": b.kind} for b in program.blocks],
        "held_fixed": [*work.fixed_inputs.inputs, *work.fixed_inputs.tokens],
        "outputs": [name for name, _ in program.outputs],
        "data": work.data is not None,
    }


def statistics(work: Work) -> dict[str, Any]:
    """Return what the data showed, or nothing."""
    seen = work.seen
    if seen is None:
        return {}
    owners = {a.atom.name: a.atom.owner for a in work.program.atoms}
    activations = [
        {
            "name": owners.get(name) or name,
            "node": name,
            "variance_mean": float(item.moments.variance.mean()),
            "variance_min": float(item.moments.variance.min()),
            "variance_max": float(item.moments.variance.max()),
            "largest_norm": item.largest_norm,
        }
        for name, item in seen.before_activations.items()
        if item.moments.count
    ]
    inputs = [{"low": r.low, "high": r.high, "largest_norm": r.norm} for r in seen.inputs]
    return {"samples": seen.samples, "inputs": inputs, "before_activations": activations}


def effect(
    normalizers: list[NormalizerResult], layers: list[LayerResult], end_to_end: Mapping[str, Value | None]
) -> dict[str, Any]:
    """Return what the normalizers change, as printed and in a form that does not notice rescaled weights."""
    out: dict[str, Any] = {}
    printed = [n.printed for n in normalizers if n.printed is not None]
    if printed:
        out["printed_product"] = _product(
            printed,
            "changes by the factor c for every normalizer when the weight before it is scaled by c: it measures the "
            "parametrization, not the function",
        )
    fixed = [n for n in normalizers if isinstance(n.details.get("slides"), Value)]
    if fixed:
        moves = "changes with the scale of the weights"
        slides = [n.details["slides"] for n in fixed]
        out["slides_product"] = _product(slides, moves)
        variances = [n.details["std_min"] ** 2 + n.details["eps"] for n in fixed]
        steepest = [Value.of((1.0 + 1e-14) / math.sqrt(v), Kind.CERTIFIED) for v in variances]  # rounded up
        out["largest_inverse_std_product"] = _product(steepest, f"scale gamma left out; {moves}")
        out["normalizer_product"] = _product([n.proved for n in fixed], moves)
    folded = [(x.folded, x.upper) for x in layers if x.folded is not None]
    if folded:
        out["folded_product"] = _product([value for value, _ in folded], "unchanged when a weight is rescaled") | {
            "weights_log10": product(upper for _, upper in folded).log10
        }
    whole, bare = end_to_end.get("variance_floor") or end_to_end.get("global"), end_to_end.get("without_normalizers")
    if whole is not None and bare is not None and not math.isinf(whole.log) and not math.isinf(bare.log):
        out["change_of_bound"] = {
            "log10": whole.log10 - bare.log10,
            "kind": "estimate",
            "note": "both are upper bounds, and the second changes with the scale of the weights",
        }
    return out


def _product(values: Iterable[Value], note: str) -> dict[str, Any]:
    """Return a product of normalizers' numbers; one of zero makes it zero, unless another has no bound."""
    whole = product(values)
    return {"log10": whole.log10, "kind": whole.kind.value, "note": note}


def messages(work: Work) -> Iterable[str]:
    """Return what a reader must know before the numbers."""
    yield from work.captured.graph.notes
    yield from work.messages
    unknown = [a.atom for a in work.program.opaque if not a.atom.known]
    for rule in itertools.islice({r.op: r for r in unknown}.values(), 8):
        where = rule.owner or "the model"
        yield f"{rule.op} in {where} is not understood, so bounds through it are infinite: {rule.reason}"
    broken = [a.atom for a in work.program.opaque if a.atom.known]
    for rule in itertools.islice({r.op: r for r in broken}.values(), 8):
        yield f"{rule.op} in {rule.owner or 'the model'} is not Lipschitz: {rule.reason}"
    if any(b.kind == "embedding output" for b in work.program.blocks):
        yield "tokens are discrete: constants are with respect to the embedding output"
    condition = work.fixed_inputs.condition(where_fixed(work))
    if condition:
        yield f"kept fixed: bounds and attained values are for inputs {condition}"
    if work.stacked is not None:
        yield (f"the samples of a batch are coupled in {work.coupled}: the input is a stacked batch of {work.stacked}")
    if work.left_out.uneven:
        size = work.stacked or work.captured.graph.batch
        yield f"samples skipped because they do not fill a batch of {size}: {work.left_out.uneven}"
    shapes = work.left_out.other_shapes
    if shapes:
        others = ", ".join(itertools.islice(shapes, 4)) + (", ..." if len(shapes) > 4 else "")
        yield (
            f"the data has samples of several shapes: all results are for shape {shapes_of(work.captured.example)}, "
            f"that of the first; samples skipped, of other shapes ({others}): {sum(shapes.values())}"
        )
    if not work.program.outputs:
        yield "no output depends on a floating-point input: every constant is zero"
    if work.seen is None:
        yield "no data was given, so no result is about your data (--data on the command line, data= in Python)"
