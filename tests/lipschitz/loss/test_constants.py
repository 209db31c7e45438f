"""The constant of any loss: read off modules and names, above every gradient, and nearly attained."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from fingerprints import fingerprint
from losses import Draw, generator, largest_gradient, normal
from normscope.core.errors import InputError, RuleError
from normscope.core.value import Kind, Value
from normscope.lipschitz.loss import (
    constants,
    corollary_14,
    corollary_14_printed,
    known_losses,
    loss_constant,
    register_loss,
)
from normscope.lipschitz.loss.constants import MODULES, NAMED, Case, loss_at
from normscope.lipschitz.loss.regression import l1

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


@pytest.mark.turns(6)
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
    with pytest.raises(RuleError, match=r"No rule for the loss Doubled\. Known losses: BCELoss.*register_loss"):
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
        with pytest.raises(InputError, match=r"Unknown parameters speed\. This loss has factor"):
            loss_constant("tripled", 2, speed=1.0)
    finally:
        del NAMED["tripled"]


def test_what_is_wrong_is_said() -> None:
    """Unknown names, counts, parameters beside modules, weights of the wrong length."""
    with pytest.raises(RuleError, match=r"No rule for a loss named 'cross'\. Known losses: bce"):
        loss_constant("cross", 3)
    with pytest.raises(RuleError, match="Expected a loss module or one of the names"):
        loss_constant(torch.nn.functional.l1_loss, 3)  # type: ignore[arg-type]
    with pytest.raises(RuleError, match="a name or a class"):
        register_loss(3)  # type: ignore[arg-type]
    for outputs, batch in ((0, 1), (3, 0), (True, 1), (2.0, 1)):
        with pytest.raises(InputError, match="at least 1"):
            loss_constant("l1", outputs, batch=batch)  # type: ignore[arg-type]
    with pytest.raises(InputError, match="has its own parameters"):
        loss_constant(nn.L1Loss(), 3, reduction="sum")
    with pytest.raises(InputError, match="one for each of the 5 outputs; got 4"):
        loss_constant(nn.CrossEntropyLoss(weight=WEIGHT), 5)
    with pytest.raises(InputError, match="Expected a reduction"):
        loss_constant("l1", 3, reduction="median")


def test_nothing_is_touched() -> None:
    """The module and the random state are as before."""
    loss = nn.CrossEntropyLoss(weight=WEIGHT.clone())
    before = fingerprint(loss)
    loss_constant(loss, K, batch=M)
    assert fingerprint(loss) == before
    assert generator().initial_seed() == 0


def test_every_rule_answers() -> None:
    """Each name with two outputs; each module class of PyTorch with its defaults."""
    assert set(known_losses()) == set(NAMED)
    for name in known_losses():
        assert NAMED[name](2).log is not None
    for cls, rule in MODULES.items():
        assert rule(cls(), Case(2)).statement.startswith("normscope Proposition LOSS-")


def test_keys_are_taken_once() -> None:
    """A second rule is refused before it does harm."""
    for key in ("l1", nn.L1Loss):
        with pytest.raises(RuleError, match="already"):
            register_loss(key)  # type: ignore[arg-type]


def test_closed_form_of_squares() -> None:
    """``2 ||h - y||/(m n)`` for the mean."""
    h, y = normal(generator(), 4, 3), normal(generator(1), 4, 3)
    here = loss_at(nn.MSELoss(), h, y)
    assert here.value == pytest.approx(2 * float(torch.linalg.vector_norm(h - y)) / 12, rel=1e-12)
    assert here.kind is Kind.ESTIMATE


def test_unreduced_losses_by_their_jacobian() -> None:
    """Block diagonal: the largest sample."""
    h, y = normal(generator(), 5, 3), torch.tensor([0, 1, 2, 0, 1])
    alone = [loss_at(nn.CrossEntropyLoss(), h[i : i + 1], y[i : i + 1]).value for i in range(5)]
    assert loss_at(nn.CrossEntropyLoss(reduction="none"), h, y).value == pytest.approx(max(alone), rel=1e-12)


def test_float32_data_and_frozen_graphs() -> None:
    """Outputs of any float type, with a graph behind them or under no_grad."""
    linear = nn.Linear(2, 3)
    out = linear(torch.ones(1, 2))
    with torch.no_grad():
        here = loss_at(nn.CrossEntropyLoss(weight=torch.ones(3)), out, torch.tensor([1]))
    assert here.value == pytest.approx(
        loss_at(nn.CrossEntropyLoss(), out.detach().double(), torch.tensor([1])).value, rel=1e-12
    )
    assert linear.weight.grad is None


def test_nothing_is_touched_at_data() -> None:
    """Module, data and random state are as before."""
    loss, h, y = nn.CrossEntropyLoss(weight=torch.ones(3)), torch.randn(2, 3), torch.tensor([0, 1])
    h.requires_grad_()
    before = fingerprint(loss, h, y)
    loss_at(loss, h, y)
    assert fingerprint(loss, h, y) == before


def test_wrong_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole numbers are no outputs; a Jacobian may be too large to form."""
    with pytest.raises(InputError, match="real numbers"):
        loss_at(nn.L1Loss(), torch.ones(2, dtype=torch.int64), torch.ones(2))
    with pytest.raises(InputError, match="real numbers"):
        loss_at(nn.L1Loss(), torch.ones(2), inputs=2)
    monkeypatch.setattr(constants, "LARGEST", 10)
    with pytest.raises(InputError, match="has 16 entries"):
        loss_at(nn.L1Loss(reduction="none"), torch.ones(4), torch.zeros(4))


def test_printed_is_below_a_gradient() -> None:
    """Widths 3-4-5-6 with scales 2 and 3: the gradient at an input of norm 3 is 36, the printed constant 18."""
    x = torch.tensor([3.0, 0.0, 0.0], dtype=torch.float64)
    W1 = torch.zeros(4, 3, dtype=torch.float64)
    W1[:, 0] = 1.0
    W1.requires_grad_()
    W2, W3 = 2 * torch.eye(5, 4, dtype=torch.float64), 3 * torch.eye(6, 5, dtype=torch.float64)
    h = torch.relu(W3 @ torch.relu(W2 @ torch.relu(W1 @ x)))
    (gradient,) = torch.autograd.grad((h + 1).abs().sum(), W1)
    found = float(torch.linalg.matrix_norm(gradient))
    network = Value.of(2.0 * 3.0 * 3.0, Kind.CERTIFIED)
    printed, proved = corollary_14_printed(network), corollary_14(network, l1(6, reduction="sum"))
    assert found == pytest.approx(36.0, rel=1e-12)
    assert printed.value == pytest.approx(18.0, rel=1e-12)
    assert printed.kind is Kind.PRINTED
    assert proved.kind is Kind.CERTIFIED
    assert printed.value < found <= proved.value
    assert proved.statement == printed.statement == "than2025 Corollary 14"
    # the four outputs that can move: equality
    assert corollary_14(network, l1(4, reduction="sum")).value == pytest.approx(found, rel=1e-12)
