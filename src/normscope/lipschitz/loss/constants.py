"""The constant of any loss: by name, or by the attributes of a module; and of a network followed by it."""

import copy
import inspect
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from normscope.core.errors import InputError, RuleError, listed
from normscope.core.rounding import matrix_norm_sandwich
from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product
from normscope.lipschitz.loss.likelihoods import (
    bce,
    bce_with_logits,
    cross_entropy,
    gaussian_nll,
    kl,
    nll,
    poisson_nll,
)
from normscope.lipschitz.loss.margins import (
    cosine_embedding,
    crammer_singer,
    hinge,
    margin_ranking,
    multi_margin,
    multilabel_margin,
    multilabel_soft_margin,
    soft_margin,
    triplet_margin,
    weston_watkins,
)
from normscope.lipschitz.loss.reduction import positive_count
from normscope.lipschitz.loss.regression import half_square, huber, l1, l2, mse, smooth_l1

F = TypeVar("F", bound=Callable[..., Value])

#: The rules of losses by name: called as ``rule(outputs, batch=..., ...)`` with the keywords they take.
_RULES = (
    *(l1, l2, mse, half_square, huber, smooth_l1, cross_entropy, nll, kl, bce, bce_with_logits, hinge),
    *(crammer_singer, weston_watkins, multi_margin, soft_margin, multilabel_margin, multilabel_soft_margin),
    *(cosine_embedding, margin_ranking, triplet_margin, poisson_nll, gaussian_nll),
)
NAMED: dict[str, Callable[..., Value]] = {rule.__name__.replace("_", "-"): rule for rule in _RULES}


@dataclass(frozen=True)
class Case:
    """What a constant of a loss depends on, besides the loss."""

    outputs: int  #: outputs of one sample: classes, or entries of a regression
    batch: int = 1  #: samples, with positions where a loss has one target for each, stacked into one input
    #: bound on outputs or errors of a sample, for losses that have a constant on balls only
    radius: float | None = None
    floor: float | None = None  #: bound from below on probabilities or norms, for losses that need one
    ignored: bool = False  #: whether targets may equal ``ignore_index``
    soft_targets: bool = False  #: whether targets of cross-entropy are probabilities


def register_loss(key: str | type[nn.Module]) -> Callable[[F], F]:
    """Register the rule of a loss.

    Args:
        key: a name, whose rule is called as ``rule(outputs, batch=..., ...)`` with the keywords it takes; or a class of
            modules, whose rule is called as ``rule(module, case)`` with a :class:`Case`.

    Raises:
        RuleError: if the key is neither, or has a rule already.

    >>> from normscope.core.value import Kind
    >>> class Absolute(nn.Module): ...
    >>> @register_loss(Absolute)
    ... def absolute(loss, case):
    ...     return Value.of(1.0, Kind.CERTIFIED)
    >>> MODULES.pop(Absolute) is absolute
    True
    """
    if isinstance(key, str):
        table: dict[Any, Any] = NAMED
    elif isinstance(key, type) and issubclass(key, nn.Module):
        table = MODULES
    else:
        raise RuleError(f"Expected a name or a class of modules, got {key!r}.")
    if key in table:
        raise RuleError(f"A rule for {key if isinstance(key, str) else key.__name__} is already registered.")

    def register(rule: F) -> F:
        table[key] = rule
        return rule

    return register


_HINT = "Register one with normscope.lipschitz.loss.register_loss."


def _reads(rule: Callable[..., Value], *attributes: str) -> Callable[[Any, Case], Value]:
    """Return a rule for modules: the one by name, with some of the module's attributes as keywords."""

    def read(loss: Any, case: Case) -> Value:
        own = {name: _plain(getattr(loss, name), case.outputs, name) for name in attributes}
        return _call(rule, {**asdict(case), "reduction": loss.reduction, **own})

    return read


#: The rules of losses by class: called as ``rule(module, case)``.
MODULES: dict[type[nn.Module], Callable[[Any, Case], Value]] = {
    nn.L1Loss: _reads(l1),
    nn.MSELoss: _reads(mse),
    nn.HuberLoss: _reads(huber, "delta"),
    nn.SmoothL1Loss: _reads(smooth_l1, "beta"),
    nn.CrossEntropyLoss: _reads(cross_entropy, "weight", "label_smoothing"),
    nn.NLLLoss: _reads(nll, "weight"),
    nn.KLDivLoss: _reads(kl),
    nn.BCELoss: _reads(bce, "weight"),
    nn.BCEWithLogitsLoss: _reads(bce_with_logits, "weight", "pos_weight"),
    nn.HingeEmbeddingLoss: _reads(hinge),
    nn.MultiMarginLoss: _reads(multi_margin, "p", "margin", "weight"),
    nn.SoftMarginLoss: _reads(soft_margin),
    nn.MultiLabelMarginLoss: _reads(multilabel_margin),
    nn.MultiLabelSoftMarginLoss: _reads(multilabel_soft_margin, "weight"),
    nn.CosineEmbeddingLoss: _reads(cosine_embedding),
    nn.MarginRankingLoss: _reads(margin_ranking),
    nn.TripletMarginLoss: _reads(triplet_margin, "p"),
    nn.PoissonNLLLoss: _reads(poisson_nll),
    nn.GaussianNLLLoss: _reads(gaussian_nll),
}


def loss_constant(
    loss: nn.Module | str,
    outputs: int,
    *,
    batch: int = 1,
    radius: float | None = None,
    floor: float | None = None,
    ignored: bool = False,
    soft_targets: bool = False,
    **parameters: Any,
) -> Value:
    """Return the Lipschitz constant of a loss with respect to the outputs of the network, in the Euclidean norm.

    Args:
        loss: a loss module of PyTorch (or a class registered with ``register_loss``), or the name of a loss.
        outputs: outputs of one sample: classes, or entries of a regression.
        batch: samples stacked into one input, with positions where a loss has one target for each.
        radius: for squared errors ``||h - y|| <= B``, for squared margins ``||h|| <= B``, of each sample.
        floor: least probability for binary cross-entropy on probabilities; least norm for cosines.
        ignored: whether targets may equal ``ignore_index``.
        soft_targets: whether targets of cross-entropy are probabilities.
        parameters: of a loss given by name, such as ``reduction`` (``mean``, ``sum`` or ``none``), ``delta``,
            ``label_smoothing`` in [0, 1], ``temperature`` > 0, or ``weight``: one number >= 0 for each output.

    Returns:
        The constant, certified; "no bound" with the reason among its assumptions where the loss has none.

    Raises:
        RuleError: if the loss has no rule.
        InputError: if an argument is out of its range, or a parameter is not one of the loss.

    >>> round(loss_constant(nn.CrossEntropyLoss(), 10).value, 6)
    1.414214
    >>> round(loss_constant("l1", 4, reduction="sum").value, 9)
    2.0
    >>> loss_constant(nn.MSELoss(), 4).assumptions[0][:38]
    'the gradient of a square grows with th'
    """
    case = Case(
        positive_count(outputs, "outputs"), positive_count(batch, "batch"), radius, floor, ignored, soft_targets
    )
    if isinstance(loss, str):
        if loss not in NAMED:
            raise RuleError(f"No rule for a loss named {loss!r}. Known losses: {', '.join(sorted(NAMED))}. {_HINT}")
        return _call(NAMED[loss], {**asdict(case), **parameters}, strict=set(parameters))
    if not isinstance(loss, nn.Module):
        raise RuleError(f"Expected a loss module or one of the names {', '.join(sorted(NAMED))}; got {loss!r}. {_HINT}")
    if parameters:
        raise InputError(f"A loss module has its own parameters. Remove {listed(sorted(parameters))}.")
    for known in type(loss).__mro__:
        # A subclass with a forward of its own is another function.
        if known in MODULES and type(loss).forward is known.forward:
            return MODULES[known](loss, case)
    names = ", ".join(sorted(c.__name__ for c in MODULES))
    raise RuleError(f"No rule for the loss {type(loss).__name__}. Known losses: {names}. {_HINT}")


def known_losses() -> tuple[str, ...]:
    """Return the names of all losses that have a rule.

    >>> "cross-entropy" in known_losses()
    True
    """
    return tuple(sorted(NAMED))


def _call(rule: Callable[..., Value], given: dict[str, Any], strict: set[str] | None = None) -> Value:
    """Call a rule with the keywords it takes; those that are ``None`` are left at its defaults."""
    taken = inspect.signature(rule).parameters
    unknown = sorted((strict or set()) - set(taken))
    if unknown:
        names = ", ".join(p for p in taken if p not in ("outputs", "batch"))
        raise InputError(f"Unknown parameters {listed(unknown)}. This loss has {names or 'none'}.")
    return rule(**{k: v for k, v in given.items() if k in taken and not (v is None and taken[k].default is not None)})


def _plain(value: Any, outputs: int, name: str) -> Any:
    """Return an attribute of a module as a rule takes it: a tensor of weights as one number for each output."""
    if not isinstance(value, Tensor):
        return value
    numbers = value.detach().reshape(-1).double().tolist()
    if len(numbers) == 1:
        return numbers * outputs
    if value.dim() > 1:  # it also varies over samples or positions: the largest that an output can meet
        last = value.detach().double().abs()
        whole = last.reshape(-1, outputs) if last.shape[-1] == outputs else last.reshape(-1, 1).expand(-1, outputs)
        return whole.amax(0).tolist()
    if len(numbers) != outputs:
        raise InputError(
            f"Expected {name} to be one number, or one for each of the {outputs} outputs; got {len(numbers)}."
        )
    return numbers


#: Entries a Jacobian of an unreduced loss may have.
LARGEST = 2**24


@statement("normscope", "Proposition LOSS-14", holds="float64 differentiation; a subgradient where there is a kink")
def loss_at(loss: nn.Module, *arguments: Tensor, inputs: int = 1) -> Value:
    """Return the norm of the derivative of a loss at given outputs: ``||dL/dh||``, the local constant there.

    It never exceeds the constant of the loss, up to rounding. The module and the tensors are not touched: a copy is run
    in float64.

    Args:
        loss: the loss, its reduction included; an unreduced loss gives the spectral norm of its Jacobian.
        arguments: what it is called with: outputs first, then targets.
        inputs: how many of the arguments are outputs (two for pairs, three for triplets).

    Raises:
        InputError: if the first arguments are not real numbers, or an unreduced loss is too large for this.

    >>> round(loss_at(nn.CrossEntropyLoss(), torch.zeros(1, 2), torch.tensor([0])).value, 9)
    0.707106781
    """
    if not 1 <= inputs <= len(arguments) or not all(a.is_floating_point() for a in arguments[:inputs]):
        raise InputError(f"Expected the first {inputs} arguments to be tensors of real numbers.")
    own = copy.deepcopy(loss).double()
    given = [a.detach().double() if a.is_floating_point() else a for a in arguments]
    points = [a.clone().requires_grad_() for a in given[:inputs]]
    with torch.enable_grad():
        out = own(*points, *given[inputs:])
        size = out.numel() * sum(p.numel() for p in points)
        if size > LARGEST:
            raise InputError(
                f"The Jacobian of the unreduced loss has {size} entries. Reduce the loss, or use less data."
            )
        rows = [
            torch.cat([g.reshape(-1) for g in torch.autograd.grad(entry, points, retain_graph=True)])
            for entry in out.reshape(-1)
        ]
    matrix = torch.stack(rows)
    norm = float(torch.linalg.vector_norm(matrix)) if len(rows) == 1 else matrix_norm_sandwich(matrix)[0]
    return Value.of(
        norm,
        Kind.ESTIMATE,
        domain="at these outputs and targets",
        statement="normscope Proposition LOSS-14",
        assumptions=("float64 differentiation",),
    )


@statement("than2025", "Corollary 14", holds="corrected: the constant of the loss multiplies that of the network")
def corollary_14(network: Value, loss: Value) -> Value:
    """Return ``||f, W_i|| <= ||l|| ||h, W_i||`` for a loss ``f = l(h)``: ``sqrt(n) ||h, W_i||`` for the l1 loss.

    Args:
        network: the constant of the network in the weights of one layer, or in its input.
        loss: the constant of the loss in its outputs, as :func:`normscope.lipschitz.loss.loss_constant` returns it.

    >>> round(corollary_14(Value.of(18.0, Kind.CERTIFIED), l1(4, reduction="sum")).value, 12)
    36.0
    """
    return replace(product((network, loss)), statement="than2025 Corollary 14")


@statement(
    "than2025", "Corollary 14", holds="printed; a bound only for one output: the l1 loss has the constant sqrt(n)"
)
def corollary_14_printed(network: Value) -> Value:
    """Return what is printed for the l1 loss, ``||f, W_i|| = ||h, W_i||``.

    >>> round(corollary_14_printed(Value.of(18.0, Kind.CERTIFIED)).value, 12)
    18.0
    """
    return replace(network, kind=Kind.PRINTED, statement="than2025 Corollary 14")
