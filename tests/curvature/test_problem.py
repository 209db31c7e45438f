"""The loss as a function of the parameters."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import normscope
from curved import classifier, labelled
from fingerprints import fingerprint
from normscope.core.errors import InputError, NonFiniteError, NormscopeError
from normscope.curvature.problem import Problem


def test_value_and_gradient_are_those_of_training() -> None:
    model, (x, y) = classifier(), labelled()
    with Problem(model, (x, y)) as problem:
        value, gradient = problem.gradient()
        assert problem.value() == pytest.approx(value, rel=1e-6)
    other = classifier().train()
    loss = nn.functional.cross_entropy(other(x), y)
    loss.backward()
    expected = torch.cat([p.grad.reshape(-1) for p in other.parameters()])
    assert value == pytest.approx(float(loss.detach()), rel=1e-6)
    torch.testing.assert_close(gradient, expected, rtol=1e-4, atol=1e-6)


def test_batches_keep_their_own_statistics_and_count_by_size() -> None:
    x, y = labelled(30)
    loader = DataLoader(TensorDataset(x, y), batch_size=20)
    with Problem(classifier(), loader) as problem:
        assert [term.inputs.batch for term in problem.terms] == [20, 10]
        whole = problem.value()
    parts = []
    for piece in (slice(0, 20), slice(20, 30)):
        with Problem(classifier(), (x[piece], y[piece])) as problem:
            parts.append(problem.value())
    assert whole == pytest.approx((2 * parts[0] + parts[1]) / 3, rel=1e-6)


@pytest.mark.parametrize("mode", ["batch", "running", "frozen-batch"])
def test_nothing_of_the_model_is_changed(mode: str) -> None:
    model = nn.Sequential(classifier(), nn.Dropout(0.5)).train()
    data = labelled()
    model(data[0]).sum().backward()
    before = fingerprint(model, *data)
    with Problem(model, data, mode=mode, masks=2) as problem:
        problem.gradient()
        first = problem.value()
        assert problem.value() == first  # masks are fixed
    assert fingerprint(model, *data) == before


def test_blocks_are_chosen_by_pattern_and_unused_parameters_have_no_gradient() -> None:
    model, data = classifier(), labelled()
    model.extra = nn.Linear(2, 2)
    model.forward = lambda x: nn.Sequential.forward(nn.Sequential(*list(model)[:-1]), x)  # type: ignore[method-assign]
    with Problem(model, data, parameters=["0.*", "extra.bias"]) as problem:
        assert [block.name for block in problem.blocks] == ["0.weight", "0.bias", "extra.bias"]
        assert problem.gradient()[1][-2:].tolist() == [0.0, 0.0]


def test_one_or_several_vectors_are_split_and_joined_and_missing_parts_are_zero() -> None:
    with Problem(classifier(), labelled()) as problem:
        one = problem.random(0)
        for vectors in (one, torch.stack([one, problem.random(1), problem.random(2)])):
            parts: list[Tensor | None] = list(problem.split(vectors).values())
            assert torch.equal(problem.flatten(parts, vectors), vectors)
            expected = vectors.clone()
            for place in (0, -1):
                parts[place] = None
                expected[..., problem.blocks[place].place] = 0.0
            assert torch.equal(problem.flatten(parts, vectors), expected)


def test_mistakes_are_told() -> None:
    model, (x, y) = classifier(), labelled()
    with pytest.raises(InputError, match="No parameter matches 'conv"):
        Problem(model, (x, y), parameters="conv*")
    with pytest.raises(InputError, match="Unknown mode"):
        Problem(model, (x, y), mode="eval")
    with pytest.raises(InputError, match="got int"):
        Problem(3, (x, y))  # type: ignore[arg-type]
    with pytest.raises(InputError, match="dropout masks"):
        Problem(model, (x, y), masks=-1)
    with Problem(model, x) as problem, pytest.raises(InputError, match="labelled data"):
        problem.value()
    with Problem(model, (x, y)) as problem, pytest.raises(NonFiniteError, match="The loss is nan"):
        problem.gradient(problem.point() * float("nan"))
    with torch.no_grad():
        model[0].weight[0, 0] = float("nan")
    with Problem(model, (x, y)) as problem, pytest.raises(NonFiniteError, match=r"not finite: 0\.weight"):
        problem.gradient()


def test_a_limit_cuts_the_last_batch() -> None:
    x, y = labelled(50)
    problem = Problem(classifier(), (x, y), batch=20, limit=30)
    assert [term.inputs.batch for term in problem.terms] == [20, 10]
    assert problem.samples == 30


class _Shifted(nn.Module):
    """A language model that compares each position with the next token, as those of transformers do."""

    def __init__(self, computes: bool = True) -> None:
        super().__init__()
        self.computes = computes
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            self.tokens, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)

    def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        """Return logits, and the loss if there are labels."""
        logits = self.head(self.tokens(ids))
        if labels is None or not self.computes:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def test_a_loss_of_the_models_own_is_the_loss() -> None:
    ids = torch.randint(7, (5, 6), generator=torch.Generator().manual_seed(0))
    model, batch = _Shifted(), {"ids": ids, "labels": ids}
    plain = nn.functional.cross_entropy(model(ids)["logits"].flatten(0, 1), ids.flatten())
    for given, loss, wanted in (
        (model, None, model(ids, ids)["loss"]),
        (model, lambda out, y: nn.functional.cross_entropy(out.flatten(0, 1), y.flatten()), plain),
        (_Shifted(computes=False), None, plain),
    ):
        with Problem(given, batch, loss) as problem:
            assert problem.value() == pytest.approx(float(wanted.detach()), rel=1e-6)
    with Problem(model, (ids, ids)) as problem:  # a pair is inputs and labels
        assert problem.value() == pytest.approx(float(plain.detach()), rel=1e-6)


def test_a_model_that_runs_with_labels_only_is_measured() -> None:
    class Needing(_Shifted):
        def forward(self, ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
            if labels is None:
                raise ValueError("no labels")
            return super().forward(ids, labels)

    ids = torch.randint(7, (5, 6), generator=torch.Generator().manual_seed(0))
    model = Needing()
    found = normscope.curvature(model, {"ids": ids, "labels": ids}, probes=0, symmetry=False)
    assert found.loss == pytest.approx(float(model(ids, ids)["loss"].detach()), rel=1e-6)


class FailsLater(nn.Module):
    """A model that runs a few times, and then raises an exception; runs are counted where nothing puts them back."""

    runs = 0

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        """Return scores, while runs are left."""
        FailsLater.runs -= 1
        if FailsLater.runs < 0:
            raise LookupError("no table for this batch")
        return self.linear(x)


@pytest.mark.parametrize("runs", [0, 1, 2, 3, 5])
def test_a_model_that_fails_on_a_later_run_gets_a_clear_error(monkeypatch: pytest.MonkeyPatch, runs: int) -> None:
    """As an error of ours, with what the model said, whenever it happens; nothing of the model is changed."""
    monkeypatch.setattr(FailsLater, "runs", runs)
    model = FailsLater()
    before = fingerprint(model)
    data = (torch.randn(4, 3, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 0, 1]))
    with pytest.raises(NormscopeError, match="no table for this batch"):
        normscope.curvature(model, data)
    assert fingerprint(model) == before
