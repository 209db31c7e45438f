"""The constant of any loss: read off modules and names, above every gradient, and nearly attained."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from losses import Draw, generator, largest_gradient, normal
from normscope.core.errors import InputError, RuleError
from normscope.core.value import Kind, Value
from normscope.lipschitz.loss import known_losses, loss_constant, register_loss
from normscope.lipschitz.loss.registry import MODULES, NAMED
from normscope.testing.state import fingerprint

K, M = 4, 3


def _classes(source: torch.Generator) -> Tensor:
    return torch.randint(0, K, (M,), generator=source)


def _signs(source: torch.Generator, *shape: int) -> Tensor:
    return 2.0 * torch.randint(0, 2, shape, generator=source).double() - 1.0


def _entries(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
    return scale * normal(source, M, K), normal(source, M, K)


def _labelled(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
    return scale * normal(source, M, K), _classes(source)


def _bits(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
    outputs = 0.3 * scale * normal(source, M, K)
    return outputs, (outputs < 0).double()  # all wrong: the slopes are largest there


def _signed(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
    outputs = 0.3 * scale * normal(source, M, K)
    return outputs, -torch.sign(outputs)


def _several(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
    target = torch.full((M, K), -1)
    target[:, 0], target[:, 1] = 2, 0
    return scale * normal(source, M, K), target


def _probable(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
    return scale * normal(source, M, K), torch.softmax(30 * normal(source, M, K), 1)


def _triplet(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
    a, b = normal(source, M, K), 1e-3 * normal(source, M, K)
    return scale * a, scale * (2 * a + b), scale * (b - a)


def _pair(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
    return scale * normal(source, M, K), scale * normal(source, M, K), _signs(source, M, K)


WEIGHT = torch.tensor([0.5, 2.0, 1.0, 3.0])
BOUNDED: list[tuple[nn.Module, Draw, int, float]] = [
    # loss, data, how many arguments are outputs, share of the constant that the attack must reach
    (nn.L1Loss(), _entries, 1, 1.0),
    (nn.SmoothL1Loss(beta=0.5), _entries, 1, 1.0),
    (nn.HuberLoss(delta=2.5), _entries, 1, 1.0),
    (nn.CrossEntropyLoss(), _labelled, 1, 0.999),
    (nn.CrossEntropyLoss(label_smoothing=0.3), _labelled, 1, 0.999),
    (nn.CrossEntropyLoss(weight=WEIGHT), _labelled, 1, 0.6),
    (nn.CrossEntropyLoss(weight=WEIGHT, label_smoothing=0.3), _labelled, 1, 0.6),
    (nn.CrossEntropyLoss(label_smoothing=0.2, weight=WEIGHT), _probable, 1, 0.6),
    (nn.NLLLoss(), _labelled, 1, 1.0),
    (nn.NLLLoss(weight=WEIGHT), _labelled, 1, 0.6),
    (nn.KLDivLoss(reduction="batchmean"), _probable, 1, 0.99),
    (nn.BCEWithLogitsLoss(), _bits, 1, 0.99),
    (nn.BCEWithLogitsLoss(pos_weight=WEIGHT, weight=WEIGHT), _bits, 1, 0.5),
    (nn.HingeEmbeddingLoss(margin=1e4), _signed, 1, 1.0),
    (nn.MultiMarginLoss(), _labelled, 1, 0.9),
    (nn.MultiMarginLoss(margin=3.0, weight=WEIGHT), _labelled, 1, 0.5),
    (nn.SoftMarginLoss(), _signed, 1, 0.99),
    (nn.MultiLabelMarginLoss(), _several, 1, 1.0),
    (nn.MultiLabelSoftMarginLoss(), _bits, 1, 0.99),
    (nn.MultiLabelSoftMarginLoss(weight=WEIGHT), _bits, 1, 0.99),
    (nn.MarginRankingLoss(margin=1e5), _pair, 2, 1.0),
    (nn.TripletMarginLoss(margin=1e6), _triplet, 3, 0.999),
    (nn.TripletMarginLoss(margin=1e6, swap=True), _triplet, 3, 0.5),
]


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize(
    ("loss", "draw", "inputs", "share"), BOUNDED, ids=lambda x: getattr(x, "__name__", str(x)[:60])
)
def test_above_every_gradient_and_nearly_attained(
    loss: nn.Module, draw: Draw, inputs: int, share: float, reduction: str
) -> None:
    """On the stacked batch, whatever the reduction."""
    if isinstance(loss, nn.KLDivLoss):
        reduction = {"mean": "batchmean"}.get(reduction, reduction)
    loss.reduction = reduction
    soft = draw is _probable
    upper = loss_constant(loss, K, batch=M, soft_targets=soft)
    found = largest_gradient(loss, draw, inputs=inputs, starts=2, steps=8)
    assert upper.kind is Kind.CERTIFIED
    assert found <= upper.value * (1 + 1e-12)
    assert found >= share * upper.value * (1 - 1e-9)


@pytest.mark.parametrize(
    ("name", "outputs", "options", "square"),
    [
        # the table of constants, as squares
        ("l1", 7, {"reduction": "sum"}, 7),
        ("l1", 7, {}, 1 / 7),
        ("l2", 7, {}, 1),
        ("half-square", 7, {"radius": 3.0}, 9),
        ("mse", 7, {"radius": 3.0}, (6 / 7) ** 2),
        ("huber", 7, {"delta": 2.0, "reduction": "sum"}, 28),
        ("smooth-l1", 7, {"beta": 2.0, "reduction": "sum"}, 7),
        ("cross-entropy", 5, {}, 2),
        ("cross-entropy", 5, {"temperature": 0.5}, 8),
        ("cross-entropy", 5, {"label_smoothing": 0.1}, 1.344619**2),
        ("bce-with-logits", 1, {}, 1),
        ("bce-with-logits", 9, {"reduction": "sum"}, 9),
        ("bce-with-logits", 9, {}, 1 / 9),
        ("hinge", 1, {}, 1),
        ("crammer-singer", 5, {}, 2),
        ("weston-watkins", 5, {}, 20),
        ("multi-margin", 5, {}, 4 / 5),
    ],
)
def test_values(name: str, outputs: int, options: dict[str, float], square: float) -> None:
    """Exact values of one sample."""
    assert loss_constant(name, outputs, **options).value ** 2 == pytest.approx(square, rel=1e-6)


@pytest.mark.parametrize(
    ("loss", "repair"),
    [
        (nn.MSELoss(), {"radius": 1.0}),
        (nn.MultiMarginLoss(p=2), {"radius": 1.0}),
        (nn.BCELoss(), {"floor": 0.1}),
    ],
    ids=str,
)
def test_losses_without_a_constant_say_so(loss: nn.Module, repair: dict[str, float]) -> None:
    """No bound, and what to give for one; with it there is one, on a domain that says so."""
    none = loss_constant(loss, 3)
    assert none.log == math.inf
    assert next(iter(repair)) in none.assumptions[0]
    some = loss_constant(loss, 3, **repair)  # type: ignore[arg-type]
    assert math.isfinite(some.log)
    assert some.domain != none.domain


def test_a_batch_of_which_all_but_one_is_ignored_has_the_constant_of_one() -> None:
    """The mean is over what is kept."""
    loss = nn.CrossEntropyLoss()
    kept, ignored = loss_constant(loss, K, batch=8), loss_constant(loss, K, batch=8, ignored=True)
    assert kept.value == pytest.approx(0.5, rel=1e-12)
    assert kept.assumptions == ("no target equals ignore_index",)
    assert ignored.value == pytest.approx(math.sqrt(2), rel=1e-12)
    target = torch.full((8,), -100)
    target[0] = 1

    def draw(source: torch.Generator, scale: float) -> tuple[Tensor, ...]:
        return scale * normal(source, 8, K), target

    found = largest_gradient(loss, draw, starts=2, steps=4)
    assert kept.value < found <= ignored.value


def test_a_module_of_ones_own() -> None:
    """A subclass with its own forward is another loss: refused until it has a rule."""

    class Doubled(nn.L1Loss):
        def forward(self, input: Tensor, target: Tensor) -> Tensor:
            return 2 * super().forward(input, target)

    class Renamed(nn.L1Loss):
        pass

    assert loss_constant(Renamed(), 4).value == pytest.approx(0.5, rel=1e-12)
    with pytest.raises(RuleError, match=r"no rule for the loss Doubled; known are BCELoss.*register_loss"):
        loss_constant(Doubled(), 4)

    @register_loss(Doubled)
    def doubled(loss: Doubled, case: object) -> Value:
        return Value.of(2.0, Kind.CERTIFIED)

    try:
        assert loss_constant(Doubled(), 4).value == pytest.approx(2.0, rel=1e-12)
        with pytest.raises(RuleError, match="already"):
            register_loss(Doubled)
    finally:
        del MODULES[Doubled]


def test_a_name_of_ones_own() -> None:
    """Registered rules get the keywords they take."""

    @register_loss("tripled")
    def tripled(outputs: int, *, factor: float = 3.0) -> Value:
        return Value.of(factor * outputs, Kind.CERTIFIED)

    try:
        assert "tripled" in known_losses()
        assert loss_constant("tripled", 2, factor=5.0).value == pytest.approx(10.0, rel=1e-12)
        with pytest.raises(InputError, match="has the parameters factor, got speed"):
            loss_constant("tripled", 2, speed=1.0)
    finally:
        del NAMED["tripled"]


def test_what_is_wrong_is_said() -> None:
    """Unknown names, counts, parameters beside modules, weights of the wrong length."""
    with pytest.raises(RuleError, match="no rule for a loss named 'cross'; known are bce"):
        loss_constant("cross", 3)
    with pytest.raises(RuleError, match="a loss is a module or one of the names"):
        loss_constant(torch.nn.functional.l1_loss, 3)  # type: ignore[arg-type]
    with pytest.raises(RuleError, match="a name or a class"):
        register_loss(3)  # type: ignore[arg-type]
    for outputs, batch in ((0, 1), (3, 0), (True, 1), (2.0, 1)):
        with pytest.raises(InputError, match="at least one"):
            loss_constant("l1", outputs, batch=batch)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has its parameters itself"):
        loss_constant(nn.L1Loss(), 3, reduction="sum")
    with pytest.raises(InputError, match="one for each of the 5 outputs; it has 4"):
        loss_constant(nn.CrossEntropyLoss(weight=WEIGHT), 5)
    with pytest.raises(InputError, match="reduced by"):
        loss_constant("l1", 3, reduction="median")


def test_nothing_is_touched() -> None:
    """The module and the random state are as before."""
    loss = nn.CrossEntropyLoss(weight=WEIGHT.clone())
    before = fingerprint(loss)
    loss_constant(loss, K, batch=M)
    assert fingerprint(loss) == before
    assert generator().initial_seed() == 0
