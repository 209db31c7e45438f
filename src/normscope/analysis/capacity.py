"""``analyze``: from a model and some data to a capacity report, one function per step."""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.around_data import around_data
from normscope.analysis.context import (
    CANDIDATES,
    AnalysisContext,
    AnalysisRequest,
    PreparedModel,
    Progress,
    capture_example,
    checked,
    full_context,
    in_mode,
    observe,
    prepare,
    walk_one,
)
from normscope.analysis.contradiction import uncontradicted, uncontradicted_row, where_defined
from normscope.analysis.depth_curve import depth, gap
from normscope.analysis.end_to_end import end_to_end
from normscope.analysis.facts import assembled_result
from normscope.analysis.layers import layer_tables
from normscope.analysis.options import Options
from normscope.core.depth_curve import Depth
from normscope.core.environment import few_threads, rarely_collected
from normscope.core.errors import STOPPED, InputError, attempt, unless_stopped
from normscope.core.memory import held, readable, require
from normscope.core.result import Result, Rows
from normscope.core.value import Kind
from normscope.graph.capture import Captured
from normscope.graph.guard import COPY_LIMIT, untouched
from normscope.graph.ir import Graph
from normscope.graph.model_state import ModelState
from normscope.linalg.dense import BLOCK_NUMBERS, LARGEST_COPIED
from normscope.lipschitz.chains.join import SECONDS
from normscope.lipschitz.composition import Composition
from normscope.lipschitz.cost import forward_cost
from normscope.lipschitz.quick_norms import QuickNorms, Roughly, affordable
from normscope.lipschitz.search import glance
from normscope.lipschitz.segments import Effort
from normscope.lipschitz.tokens import KEPT_BYTES

#: A first look pays off from this many parameters or modules, but not for very many modules with few parameters:
#: then capturing the graph takes most of the time.
BIG_PARAMETERS, MANY_MODULES, TOO_MANY_MODULES = 500_000, 60, 1_000
#: Multiplications that a first look spends on the data, and the most samples it reads.
FIRST_LOOK_WORK, FIRST_LOOK_SAMPLES = 1e10, 256
#: Multiplications for norms of weights and for a forward pass; above either, a first look computes less.
NORM_WORK, HEAVY_FORWARD = 6e9, 1e9
#: Assumption of the bounds of a first look.
ASSUMPTION = "graph and model were compared at one sample only"
NOTE = "first look: bounds are valid but loose; " + ASSUMPTION


def analyze(
    model: nn.Module,
    data: Any = None,
    *,
    input_shape: tuple[int, ...] | None = None,
    name: str = "",
    options: Options | None = None,
    progress: Progress | None = None,
    limit: int | None = None,
    device: str | torch.device | None = None,
    fast: bool = False,
    first: Callable[[Result], None] | None = None,
    prepared: PreparedModel | None = None,
    **settings: Any,
) -> Result:
    """Measure the capacity of a network: Lipschitz constants layer by layer and end to end, each with its guarantee.

    Args:
        model: any PyTorch module; it is not changed.
        data: a tensor, tuple, dict, DataLoader or generator of inputs; without it, no result is about data.
        input_shape: shape of one input without batch axis, if there is no data and it cannot be guessed.
        name: name of the model in the result.
        options: an :class:`Options`; single fields may be passed as keyword arguments, which take precedence.
        progress: called with a line of text at each step.
        limit: use at most this many samples of the data.
        device: where the graph is run; by default the model's device.
        fast: return the first look, which takes seconds: looser certified bounds, and attained values.
        first: called with the first look at a large network, before the full analysis.
        prepared: the model as prepared for an earlier first look.
        **settings: single fields of :class:`Options`.

    Returns:
        The result, with ``summary``, ``to_frame``, ``plot``, ``to_dict``, ``to_json``, ``save``. After Ctrl-C,
        what is known so far.

    Raises:
        NormscopeError: a subclass that says what is wrong with the model, its weights or the data.

    >>> result = analyze(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), torch.ones(3, 4))
    >>> result.end_to_end["global"].kind.value, result.coverage.understood == result.coverage.ops
    ('certified', True)
    """
    say = progress or (lambda text: None)
    request = AnalysisRequest(model, data, Options.of(options, settings), name, limit, input_shape, device, say)
    if fast and (request.options.radii or request.options.time not in (0.0, SECONDS)):
        raise InputError(
            "The first look (fast, --fast) uses neither radius nor time. Leave them out, or run the whole analysis."
        )
    request = checked(request)
    model = request.model
    held_before = held()
    tensors = [tensor for _, tensor in ModelState(model).tensors]
    say(announced(tensors, held_before))
    runs = not fast or prepared is None  # a first look at what was captured runs the graph, not the model
    with rarely_collected(), untouched(model, parameters=runs):
        few_threads(model)
        look = None
        if fast or is_big(model):
            if prepared is None:
                say("first look: capturing the graph")
                prepared = prepare(request)
            look = first_look(request, prepared)
        if look is not None and (fast or STOPPED in look.messages):
            return look
        try:
            if look is not None and first is not None:
                first(look)
            say("capturing the graph")
            captured = capture_example(request, known=None if prepared is None else prepared.captured)
            say(announced(tensors, held_before, captured.graph))
            result = _analyze(request, captured)
        except KeyboardInterrupt:
            if look is None:
                raise
            return replace(look, messages=(*look.messages, STOPPED))
        return result if look is None or STOPPED not in result.messages else completed(result, look)


def is_big(model: nn.Module) -> bool:
    """Return whether a network is so big that a first look pays off.

    >>> is_big(nn.Linear(2, 2)), is_big(nn.Linear(1000, 1000))
    (False, True)
    """
    modules = sum(1 for _ in model.modules())
    return sum(p.numel() for p in model.parameters()) >= BIG_PARAMETERS or MANY_MODULES <= modules < TOO_MANY_MODULES


def _analyze(request: AnalysisRequest, captured: Captured) -> Result:
    context = full_context(request, captured)
    messages: list[str] = []
    observed = observe(context, context.at_most(CANDIDATES), context.limit)
    tables = layer_tables(context, observed.seen, messages)
    whole = uncontradicted(end_to_end(context, observed, tables, messages), messages)
    if context.data is None:  # a sample with NaN is an error
        whole = where_defined(whole, captured, context.reference, messages)
    tables = replace(tables, layers=[uncontradicted_row(row, messages) for row in tables.layers])

    ceiling = whole.constants["global"]
    step = functools.partial(unless_stopped, messages=messages)
    around = step("what holds around the data", lambda: around_data(context, ceiling, messages), None)
    curves = step("the table along depth", lambda: depth(context, tables, whole), Depth())
    shares = step("the shares of the gap", lambda: gap(context.program, tables, whole, curves), None)
    return assembled_result(
        context, observed, tables, whole.constants, messages, depth=curves, gap=shares, around=around
    )


def first_look(request: AnalysisRequest, prepared: PreparedModel) -> Result:
    """Return the result of a first look, which takes seconds.

    Norms of layers are products of those of reshaped weights, nothing is searched for, and one pair of inputs shows
    what is attained.
    """
    options, captured = request.options, in_mode(prepared.captured, request.options)
    if captured is not prepared.captured:
        prepared = walk_one(captured, options)
    cost = forward_cost(prepared.program)
    most = affordable((t for t in captured.tensors.values() if t.ndim > 1), NORM_WORK)
    heavy = cost > HEAVY_FORWARD or most < math.inf
    bare = options.without_normalizers and not heavy
    options = replace(options, time=0.0, stacked=False, tolerance=options.tolerance or 1e-2, without_normalizers=bare)
    context = AnalysisContext(
        **vars(replace(request, options=options)),
        **vars(prepared),
        norms=QuickNorms(Effort(1e-2, options.delta, options.seed), most),
        composition=Roughly if heavy else Composition,
    )
    messages = [NOTE]
    samples = max(1, int(min(FIRST_LOOK_SAMPLES, FIRST_LOOK_WORK / max(1.0, cost))))
    observed = observe(context, 1, context.at_most(samples), exact=False)
    context.say("first look: bounds")
    tables = layer_tables(context, observed.seen, messages)
    search = functools.partial(glance, captured, context.program, observed.candidates[0], options.seed)
    whole = end_to_end(context, observed, tables, messages, search)
    if context.data is None:
        whole = where_defined(whole, captured, context.reference, messages)
    curves = attempt("the table along depth", lambda: depth(context, tables, whole), Depth(), messages)
    constants = dict(whole.constants)
    for key, value in whole.constants.items():
        if value is not None and value.kind is Kind.CERTIFIED:
            constants[key] = replace(value, assumptions=(*value.assumptions, ASSUMPTION))
        elif value is not None and value.kind is Kind.PRINTED and most < math.inf:
            constants[key] = None  # what papers print is about norms, not about what bounds them
    result = assembled_result(context, observed, tables, constants, messages, depth=curves)
    return replace(result, model=result.model | {"fast": True})


def completed(result: Result, first: Result) -> Result:
    """Complete a result that was stopped early with values of the first look."""
    rows = {row.name: row for row in first.layers}
    constants = {
        key: first.end_to_end.get(key) if value is None or value.log == math.inf else value
        for key, value in result.end_to_end.items()
    }
    same = constants["global"] is first.end_to_end.get("global")
    return replace(
        result,
        layers=Rows(rows.get(x.name, x) if x.upper.log == math.inf else x for x in result.layers),
        end_to_end=constants,
        effect=first.effect if same else result.effect,
        depth=first.depth if same else result.depth,
        messages=tuple(dict.fromkeys((*result.messages, *((NOTE,) if same else ()), STOPPED))),
    )


#: Bytes taken by the libraries that capture a graph.
LIBRARIES = 120e6
#: Bytes of graph, expressions and rows per tensor of the model.
EACH_TENSOR = 30e3
#: Copies of the activations that derivatives of the network hold (measured: 4.6 to 6.4).
ACTIVATIONS = 4.6
#: Numbers held while the norm of a convolution is certified: for each of its weights, at most in all, and for each
#: weight of a convolution larger than that (measured: 17 to 53, 86 million, and 6).
EACH_WEIGHT, MOST_HELD, EACH_OF_MANY = 32.0, 9e7, 6.0
#: Bytes per number in float64, in which norms are certified.
_DOUBLE = 8.0


def announced(tensors: Iterable[Tensor], before: float, graph: Graph | None = None) -> str:
    """Return the estimated peak memory of an analysis as text, after checking that it is available.

    ``before`` is what was held before it began; the tensors are those of the model, and once the graph is known, its
    activations count too.

    Raises:
        NotEnoughMemoryError: if it does not fit.

    >>> announced([torch.zeros(2, 2)], held()).startswith("peak memory about")
    True
    """
    peak = before + additional_peak(tensors, graph)
    require(peak - held(), "This analysis", "Use a machine with more memory, or analyze parts of the model.")
    return f"peak memory about {readable(peak)}"


def additional_peak(tensors: Iterable[Tensor], graph: Graph | None = None) -> float:
    r"""Estimate the peak memory of an analysis besides the model itself, in bytes.

    Copies of small models that guard their state and the kept matrices of composed maps stay all the time, as do, once
    the graph is known, the activations that derivatives of the network keep. Added to these is the largest of: all
    weights in float64 (to differentiate the network), the largest matrix with four copies of its Gram matrix while it
    is certified, and what is needed to certify the largest convolution.

    >>> additional_peak([]) == LIBRARIES
    True
    """
    tensors = list(tensors)
    floating = [t for t in tensors if t.is_floating_point()]
    size = float(sum(t.numel() * t.element_size() for t in floating))
    numbers = float(sum(t.numel() for t in floating))
    copies = 2.0 * size if size <= COPY_LIMIT else 0.0
    kept = min(float(KEPT_BYTES), 4.0 * _DOUBLE * numbers)
    largest = 0.0
    for matrix in (t for t in floating if t.ndim == 2):
        copied = float(matrix.numel()) if matrix.numel() <= LARGEST_COPIED else 3.0 * BLOCK_NUMBERS
        largest = max(largest, _DOUBLE * max(3.0 * copied, 2.0 * copied + 4.0 * float(min(matrix.shape)) ** 2))
    for kernel in (t for t in floating if t.ndim > 3 and math.prod(t.shape[2:]) > 1):
        weights = float(kernel.numel())
        largest = max(largest, _DOUBLE * max(min(EACH_WEIGHT * weights, MOST_HELD), EACH_OF_MANY * weights))
    shapes = [node.shape for node in graph or () if not node.target and node.shape is not None]
    activations = ACTIVATIONS * _DOUBLE * sum(math.prod(max(1, side) for side in shape) for shape in shapes)
    return LIBRARIES + EACH_TENSOR * len(tensors) + copies + kept + activations + max(_DOUBLE * numbers, largest)
