"""``analyze``: from a model and some data to a capacity report, one function per step."""

import functools
import math
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from normscope.analysis.around import around_data
from normscope.analysis.context import (
    CANDIDATES,
    Prepared,
    Progress,
    Work,
    candidates,
    captured_on,
    in_mode,
    look,
    prepare,
    refuse_single_values,
    walk_coupled,
    walk_one,
)
from normscope.analysis.contradiction import uncontradicted, uncontradicted_row
from normscope.analysis.depth_curve import depth, gap
from normscope.analysis.end_to_end import end_to_end
from normscope.analysis.facts import gathered
from normscope.analysis.layers import layers, normalizers
from normscope.analysis.options import Options
from normscope.core.depth_curve import Depth
from normscope.core.environment import few_threads, rarely_collected
from normscope.core.errors import STOPPED, InputError, attempt, unless_stopped
from normscope.core.memory import held, readable, require
from normscope.core.result import Result, Rows
from normscope.core.value import Kind
from normscope.graph.capture import Captured, uncompiled
from normscope.graph.guard import COPY_LIMIT, untouched
from normscope.graph.ir import Graph
from normscope.graph.model_state import ModelState
from normscope.graph.repeatable_data import repeatable
from normscope.graph.weights_validation import check_model
from normscope.linalg.dense import BLOCK_NUMBERS, LARGEST_COPIED
from normscope.lipschitz.composition import Composition
from normscope.lipschitz.cost import forward_cost, is_large
from normscope.lipschitz.quick_norms import QuickNorms, Roughly, affordable
from normscope.lipschitz.search import glance
from normscope.lipschitz.segments import Effort, SegmentNorms
from normscope.lipschitz.tokens import KEPT_BYTES

#: Parameters or modules from which on a first look is worth its time, and modules from which on, if they have few
#: parameters, it is not: there is a graph of many operations to be captured, and all else is cheap.
BIG, MANY, TOO_MANY = 500_000, 60, 1_000
#: Relative widths aimed at for the norms of large networks, and of all others.
COARSE, FINE = 1e-2, 1e-4
#: Samples of the data that a first look takes: so many multiplications, and at most so many.
WORK, SAMPLES = 1e10, 256
#: Multiplications that norms of weights may take then, and those of a forward pass; above either, less is looked at.
NORMS, HEAVY = 6e9, 1e9
#: What the bounds of a first look take for granted.
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
    prepared: Prepared | None = None,
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
    options = Options.of(options, settings)
    model, data = checked(model, data, options, limit)
    say = progress or (lambda text: None)
    held_before = held()
    tensors = [tensor for _, tensor in ModelState(model).tensors]
    say(announced(tensors, "This analysis", held_before))
    name = name or type(model).__name__
    runs = not fast or prepared is None  # a first look at what was captured runs the graph, not the model
    with rarely_collected(), untouched(model, parameters=runs):
        few_threads(model)
        look = None
        if fast or is_big(model):
            if prepared is None:
                say("first look: capturing the graph")
                prepared = prepare(model, data, input_shape, device, limit)
            look = first_look(prepared, name, options, say, model, data, limit)
        if look is not None and (fast or STOPPED in look.messages):
            return look
        try:
            if look is not None and first is not None:
                first(look)
            say("capturing the graph")
            known = None if prepared is None else prepared.captured
            captured = captured_on(model, data, input_shape, device, limit, known=known)
            say(announced(tensors, "This analysis", held_before, captured.graph))
            result = _analyze(captured, name, options, say, model, data, limit)
        except KeyboardInterrupt:
            if look is None:
                raise
            return replace(look, messages=(*look.messages, STOPPED))
        return result if look is None or STOPPED not in result.messages else completed(result, look)


def checked(model: nn.Module, data: Any, options: Options, limit: int | None) -> tuple[nn.Module, Any]:
    """Return the model as it is written and data that can be read again, after looking at everything given."""
    if options.mode == "frozen-batch" and data is None:
        raise InputError("mode='frozen-batch' needs a batch of data to freeze its statistics. Pass data.")
    if limit is not None and limit < 1:
        raise InputError(f"Expected limit, the largest number of samples, to be at least 1, got {limit}.")
    if not isinstance(model, nn.Module):
        raise InputError(
            f"Expected a torch.nn.Module, got {type(model).__name__}. Build the model, or load it with "
            "normscope.load_model(...)."
        )
    model, data = uncompiled(model), repeatable(data)
    check_model(model)
    return model, data


def begin(
    captured: Captured, options: Options, say: Progress, model: nn.Module, data: Any = None, limit: int | None = None
) -> Work:
    """Walk the graph in its mode and look at the data: what every analysis starts from."""
    captured = in_mode(captured, options)
    program, coupled = walk_coupled(captured, options)
    tolerance = options.tolerance or (COARSE if is_large(program) else FINE)
    norms = SegmentNorms(Effort(tolerance, options.delta, options.seed), say)
    options = replace(options, tolerance=tolerance)
    work = Work(captured, program, options, norms, say, model, data, limit, coupled)
    return _with_data(work, work.at_most(CANDIDATES), limit)


def _with_data(work: Work, points: int, samples: int | None, *, exact: bool = True) -> Work:
    """Look at the data, and choose the points at which the network may be differentiated."""
    if work.coupled:
        refuse_single_values(work.program)
    work.candidates = candidates(work, points)
    if work.data is not None:
        work.say("statistics of the data")
        look(work, samples, exact=exact)
    return work


def is_big(model: nn.Module) -> bool:
    """Return whether a network is so big that a first look is worth its time.

    >>> is_big(nn.Linear(2, 2)), is_big(nn.Linear(1000, 1000))
    (False, True)
    """
    modules = sum(1 for _ in model.modules())
    return sum(p.numel() for p in model.parameters()) >= BIG or MANY <= modules < TOO_MANY


def _analyze(
    captured: Captured, name: str, options: Options, say: Progress, model: nn.Module, data: Any, limit: int | None
) -> Result:
    """Carry out the steps on a captured model."""
    work = begin(captured, options, say, model, data, limit)
    work.layers = layers(work)
    work.normalizers = normalizers(work)
    told = work.messages
    whole = uncontradicted(end_to_end(work), told)
    ceiling = whole.constants["global"]
    work.layers = [uncontradicted_row(row, told) for row in work.layers]
    around = unless_stopped("what holds around the data", lambda: around_data(work, ceiling), None, told)
    curves = unless_stopped("the table along depth", lambda: depth(work, whole), Depth(), told)
    parts = unless_stopped("the shares of the gap", lambda: gap(work, whole, curves), None, told)
    return gathered(work, name, whole.constants, depth=curves, gap=parts, around=around)


def first_look(
    prepared: Prepared, name: str, options: Options, say: Progress, model: nn.Module, data: Any, limit: int | None
) -> Result:
    """Return what can be told of a network within seconds.

    Norms of layers are products of those of reshaped weights, nothing is searched for, and one pair of inputs shows
    what is attained.
    """
    captured = in_mode(prepared.captured, options)
    program, coupled = prepared.program, prepared.coupled
    if captured is not prepared.captured:
        program, coupled = walk_one(captured, options)
    cost = forward_cost(program)
    most = affordable((t for t in captured.tensors.values() if t.ndim > 1), NORMS)
    heavy = cost > HEAVY or most < math.inf
    bare = options.without_normalizers and not heavy
    options = replace(options, time=0.0, stacked=False, tolerance=options.tolerance or 1e-2, without_normalizers=bare)
    norms = QuickNorms(Effort(1e-2, options.delta, options.seed), most)
    composition = Roughly if heavy else Composition
    work = Work(captured, program, options, norms, say, model, data, limit, coupled, composition)
    work.messages.append(NOTE)
    samples = max(1, int(min(SAMPLES, WORK / max(1.0, cost))))
    _with_data(work, 1, work.at_most(samples), exact=False)
    say("first look: bounds")
    work.layers = layers(work)
    work.normalizers = normalizers(work)
    whole = end_to_end(work, functools.partial(glance, captured, program, work.candidates[0], options.seed))
    curves = attempt("the table along depth", lambda: depth(work, whole), Depth(), work.messages)
    constants = dict(whole.constants)
    for key, value in whole.constants.items():
        if value is not None and value.kind is Kind.CERTIFIED:
            constants[key] = replace(value, assumptions=(*value.assumptions, ASSUMPTION))
        elif value is not None and value.kind is Kind.PRINTED and most < math.inf:
            constants[key] = None  # what papers print is about norms, not about what bounds them
    result = gathered(work, name, constants, depth=curves)
    return replace(result, model=result.model | {"fast": True})


def completed(result: Result, first: Result) -> Result:
    """Return a result that was stopped, with what the first look knows where nothing better was computed."""
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


#: What the libraries that capture a graph take when they are first used.
LIBRARIES = 120e6
#: What the graph, its expressions and rows take for each tensor of the model.
EACH_TENSOR = 30e3
#: Times that derivatives of the network hold its activations: forward, backward and twice (measured, 4.6 to 6.4).
ACTIVATIONS = 4.6
#: Numbers held while the norm of a convolution is certified: for each of its weights, at most in all, and for each
#: weight of a convolution larger than that (measured: 17 to 53, 86 million, and 6).
EACH_WEIGHT, MOST_HELD, EACH_OF_MANY = 32.0, 9e7, 6.0
#: Bytes of a number in the precision norms are certified in.
_DOUBLE = 8.0


def announced(tensors: Iterable[Tensor], what: str, before: float, graph: Graph | None = None) -> str:
    """Return how much memory an analysis will take at its peak, after seeing that it fits.

    ``before`` is what was held before it began; the tensors are those of the model, and once the graph is known, its
    activations count too.

    Raises:
        NotEnoughMemoryError: if it does not fit.

    >>> announced([torch.zeros(2, 2)], "This", held()).startswith("peak memory about")
    True
    """
    peak = before + additional_peak(tensors, graph)
    require(peak - held(), what, "Use a machine with more memory, or analyze parts of the model.")
    return f"peak memory about {readable(peak)}"


def additional_peak(tensors: Iterable[Tensor], graph: Graph | None = None) -> float:
    r"""Return about how many bytes an analysis takes at most besides the model itself.

    Copies of small models that guard their state and the matrices kept of composed maps stay all the time, and with
    them, once the graph is known, what derivatives of the network keep of its activations. Beside them stands the
    largest of: all weights in float64 (to differentiate the network), the largest matrix with four copies of its Gram
    matrix while it is certified, and what certifying the largest convolution holds.

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
