"""The result of an analysis and its descriptive parts: coverage, input, statistics, effect of normalizers, messages."""

import functools
import itertools
import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch

from normscope.analysis.context import AnalysisContext, Observations, shapes_of
from normscope.analysis.layers import LayerTables
from normscope.core.errors import attempt
from normscope.core.result import Coverage, LayerResult, NormalizerResult, OpaqueOperation, Result, Rows
from normscope.core.value import Kind, Value, product
from normscope.graph.capture import Captured
from normscope.graph.module_tree import fold
from normscope.operators.program import Program
from normscope.operators.survey import Survey


def assembled_result(
    context: AnalysisContext,
    observed: Observations,
    tables: LayerTables,
    constants: dict[str, Value | None],
    messages: list[str],
    **rest: Any,
) -> Result:
    """Return the result of an analysis; a part that fails is left out with a message, and the others are kept."""
    graph, step = context.captured.graph, functools.partial(attempt, messages=messages)
    return Result(
        model=model_facts(context),
        input=input_facts(context),
        coverage=coverage(context.program, context.captured),
        normalizers=Rows(tables.normalizers),
        layers=Rows(tables.layers),
        end_to_end=constants,
        effect=step("what normalizers change", lambda: effect(tables.normalizers, tables.layers, constants), {}),
        statistics=step("the statistics of the data", lambda: statistics(context.program, observed.seen), {}),
        blocks=step("the tree of modules", lambda: tuple(b.to_dict() for b in fold(graph)), ()),
        messages=step("a part of these messages", lambda: tuple(all_messages(context, observed, messages)), ())
        or tuple(messages),
        **rest,
    )


def coverage(program: Program, captured: Captured) -> Coverage:
    """Return how many operations and parameters have rules."""
    rules = [expr.atom for expr in program.opaque]
    opaque = [OpaqueOperation(rule.name, rule.op, rule.owner, rule.reason, rule.known) for rule in rules]
    unknown = {o.name for o in opaque if not o.known}
    parameters = {n.target for n in captured.graph if n.op == "parameter"}
    total = sum(v.numel() for k, v in captured.tensors.items() if k in parameters)
    lost = {w for name in unknown for w in program.used_weights.get(name, ())}
    missing = sum(captured.tensors[w].numel() for w in lost if w in captured.tensors)
    share = 1.0 if total == 0 else (total - missing) / total
    return Coverage(program.total, program.total - len(unknown), share, total, tuple(opaque))


def model_facts(context: AnalysisContext) -> dict[str, Any]:
    """Return facts about the model and the settings of the analysis."""
    from normscope import __version__

    graph, model, options = context.captured.graph, context.model, context.options
    return {
        "name": context.name,
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


def input_facts(context: AnalysisContext) -> dict[str, Any]:
    """Return what the constants take as the input of the network."""
    program = context.program
    return {
        "blocks": [{"name": b.name, "shape": list(b.shape), "kind": b.kind} for b in program.blocks],
        "held_fixed": [*context.fixed_inputs.inputs, *context.fixed_inputs.tokens],
        "outputs": [name for name, _ in program.outputs],
        "data": context.data is not None,
    }


def statistics(program: Program, seen: Survey | None) -> dict[str, Any]:
    """Return statistics of the data, if there is any."""
    if seen is None:
        return {}
    owners = {a.atom.name: a.atom.owner for a in program.atoms}
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
    """Return the effect of the normalizers, as printed and in a form that is invariant to rescaled weights."""
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
    """Return the product of constants of normalizers; a zero makes it zero, unless another has no bound."""
    whole = product(values)
    return {"log10": whole.log10, "kind": whole.kind.value, "note": note}


def all_messages(context: AnalysisContext, observed: Observations, messages: Iterable[str]) -> Iterable[str]:
    """Return what a reader must know before the numbers: notes on the graph, messages of the steps, limitations."""
    yield from context.captured.graph.notes
    yield from messages
    unknown = [a.atom for a in context.program.opaque if not a.atom.known]
    for rule in itertools.islice({r.op: r for r in unknown}.values(), 8):
        where = rule.owner or "the model"
        yield f"{rule.op} in {where} is not understood, so bounds through it are infinite: {rule.reason}"
    broken = [a.atom for a in context.program.opaque if a.atom.known]
    for rule in itertools.islice({r.op: r for r in broken}.values(), 8):
        yield f"{rule.op} in {rule.owner or 'the model'} is not Lipschitz: {rule.reason}"
    if any(b.kind == "embedding output" for b in context.program.blocks):
        yield "tokens are discrete: constants are with respect to the embedding output"
    if context.fixed_condition:
        yield f"kept fixed: bounds and attained values are for inputs {context.fixed_condition}"
    stacked = context.stacked
    if stacked is not None:
        yield f"the samples of a batch are coupled in {context.coupled}: the input is a stacked batch of {stacked}"
    if observed.skipped.uneven:
        size = stacked or context.captured.graph.batch
        yield f"samples skipped because they do not fill a batch of {size}: {observed.skipped.uneven}"
    shapes = observed.skipped.other_shapes
    if shapes:
        others = ", ".join(itertools.islice(shapes, 4)) + (", ..." if len(shapes) > 4 else "")
        yield (
            f"the data has samples of several shapes: all results are for shape {shapes_of(context.captured.example)}, "
            f"that of the first; samples skipped, of other shapes ({others}): {sum(shapes.values())}"
        )
    if not context.program.outputs:
        yield "no output depends on a floating-point input: every constant is zero"
    if context.data is None:
        yield "no data was given, so no result is about your data (--data on the command line, data= in Python)"
