"""``refute``: attack every certified number in the results of a model with the model itself."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from normscope.analysis import Options, analyze
from normscope.analysis.weight_lipschitz import weight_lipschitz
from normscope.core.errors import InputError
from normscope.core.numbers import check_count
from normscope.core.result import Result
from normscope.graph.guard import untouched
from normscope.graph.inputs import ModelInputs, iterate
from normscope.graph.repeatable_data import repeatable
from normscope.graph.wrappers import require_module
from normscope.testing.attack_balls import attack_balls
from normscope.testing.attack_context import AttackContext, split_batch
from normscope.testing.attack_end_to_end import attack_end_to_end
from normscope.testing.attack_modules import attack_effect, attack_layers, attack_normalizers
from normscope.testing.attack_weights import attack_weights
from normscope.testing.hooked_model import HookedModel
from normscope.testing.refutation import Refutation

#: Samples of the data that are used.
SAMPLES = 8


def refute(
    model: nn.Module,
    data: Any,
    *,
    result: Result | None = None,
    name: str = "",
    seed: int = 0,
    effort: float = 1.0,
    weights: bool = True,
    progress: Callable[[str], None] | None = None,
    **settings: Any,
) -> Refutation:
    """Try to refute every certified number in the results of a model, by running the model itself.

    The model is analyzed, and a copy of it in float64 is run with hooks on its modules, so that the graph behind the
    bounds is not used: layers against their singular values, normalizers against pairs of inputs at every scale
    and at the edge of their domain, totals and depth curves against pairs found by differentiation and ascent, balls
    around the data against Jacobians inside them, and certified decisions against inputs that are decided differently.

    Args:
        model: any PyTorch module; it is not changed.
        data: a tensor, tuple, dict or loader of inputs; its first samples are used.
        result: what ``analyze`` gave for this model and the same samples; by default it is computed.
        name: name of the model.
        seed: random seed.
        effort: how long to search: 2 takes about twice as long as 1.
        weights: also attack what :func:`normscope.weight_lipschitz` says.
        progress: called with a line of text at each step.
        **settings: of the analysis, see :class:`normscope.Options`.

    Returns:
        Every number attacked, how near the attack came, and what was refuted.

    Raises:
        NormscopeError: a subclass that says what is wrong with the model or the data.

    >>> found = refute(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3)).eval(), torch.randn(4, 4))
    >>> len(found.attacks) >= 6, found.refuted
    (True, ())
    """
    require_module(model)
    if data is None:
        raise InputError("Attacking a model needs data. Pass some inputs.")
    check_count(seed, "seed", least=0)
    if not effort > 0:
        raise InputError(f"Expected a positive effort, got {effort}.")
    options = Options.of(None, settings)
    if options.mode == "frozen-batch":
        raise InputError("Expected mode 'running' or 'batch', got 'frozen-batch'.")
    say = progress or (lambda text: None)
    data = repeatable(data)
    with untouched(model):
        first = next(iter(iterate(data, model)))
        batch = split_batch(first, min(SAMPLES, max(first.batch, 1)))[0]  # without labels
        if result is None:
            say("analyzing")
            result = analyze(model, batch, name=name, options=options)
        context = _attack_context(model, batch, result, seed, effort, say)
        context.attempt("layers", attack_layers)
        context.attempt("normalizers", attack_normalizers)
        context.attempt("effect", attack_effect)
        context.attempt("end_to_end", attack_end_to_end)
        context.attempt("around", attack_balls)
        if weights:
            say("analyzing the weights")
            context.attempt("weights", lambda s: attack_weights(s, weight_lipschitz(model, batch, options=options)))
    return Refutation(name or type(model).__name__, seed, tuple(context.attacks), tuple(context.skipped))


def _attack_context(
    model: nn.Module, batch: ModelInputs, result: Result, seed: int, effort: float, say: Callable[[str], None]
) -> AttackContext:
    """Copy the model and run it at the data."""
    blocks = result.input["blocks"]
    size = next((b["shape"][0] for b in blocks if b["shape"]), 1)
    samples = split_batch(batch, size)
    hooked = HookedModel(model, samples[0], blocks, batch_statistics=result.model["mode"] == "batch")
    data = torch.stack([hooked.point(s) for s in samples])
    mixed = hooked.mixed_calls(data[:3])
    independent = None not in mixed
    hooked.mixed = mixed if independent else set()
    with torch.no_grad():
        trace = hooked(data) if independent else hooked(data[:1])
    generator = torch.Generator().manual_seed(seed)
    return AttackContext(model, batch, result, hooked, data, trace, independent, generator, effort, say)
