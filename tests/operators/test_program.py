"""The walk: every tensor an expression of atoms, normalizers and layers noted, nothing lost, nothing counted twice."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrizations

from networks import Lambda, LambdaOfTwo, captured_of, points, program_of, seeded, upper_of
from normscope.operators.nonlinear import Input
from normscope.operators.program import build_program


def test_atoms_are_the_input_and_the_nonlinear_operations() -> None:
    """A network of four layers has the input, two nonlinearities and a normalizer's core as atoms."""
    model = seeded(nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.ReLU(), nn.Linear(5, 3), nn.Tanh()))
    program = program_of(model, points(2, 4))
    assert [type(a.atom).__name__ for a in program.atoms] == ["Input", "Division", "Pointwise", "Pointwise"]
    assert [a.id for a in program.atoms] == sorted(a.id for a in program.atoms)
    assert program.total == 5
    assert program.opaque == []


def test_layers_in_order_with_their_weights() -> None:
    """Linear operations with parameters, by the module that owns them; dead ones are left out."""
    model = seeded(
        Lambda(
            lambda s, x: s.c(s.a(x)).relu() + 0 * s.a(x).sum() if s.b(x) is not None else x,
            a=nn.Linear(4, 4),
            b=nn.Linear(4, 2),
            c=nn.Linear(4, 3),
        )
    )
    program = program_of(model, points(2, 4))
    names = [e.op.owner for e in program.layers]
    assert "b" not in names
    assert names[0] == "a"
    assert {e.op.weight_name for e in program.layers} <= {"a.weight", "c.weight"}


def test_blocks_of_floating_inputs_and_fixed_integers() -> None:
    """Numbers are blocks; integers and masks are held fixed and named."""
    model = seeded(LambdaOfTwo(lambda s, x, y: s.a(x) * y, a=nn.Linear(4, 3)))
    both = program_of(model, points(2, 4), points(2, 3))
    assert [(b.kind, b.shape) for b in both.blocks] == [("input", (1, 4)), ("input", (1, 3))]
    masked = program_of(model, points(2, 4), torch.ones(2, 3, dtype=torch.int64))
    assert len(masked.blocks) == 1
    assert len(masked.fixed) == 1
    assert isinstance(masked.atoms[0].atom, Input)


def test_tokens_start_at_their_embedding_positions_are_constants() -> None:
    """Two embeddings of tokens are two blocks; an embedding of fixed positions is a constant."""
    model = seeded(
        Lambda(lambda s, x: s.t(x) + s.p(torch.arange(x.shape[1])), t=nn.Embedding(7, 3), p=nn.Embedding(5, 3))
    )
    program = program_of(model, torch.tensor([[0, 6, 3], [1, 1, 2]]))
    assert [b.kind for b in program.blocks] == ["embedding output"]
    assert program.fixed == []
    assert upper_of(program) == pytest.approx(1.0, rel=1e-12)


def test_every_normalizer_is_a_site() -> None:
    """With its kind, its place, its parameters and what it reads."""
    model = seeded(
        nn.Sequential(
            nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.GroupNorm(2, 4), nn.InstanceNorm2d(4), nn.LayerNorm([4, 3, 3]),
            nn.RMSNorm([4, 3, 3]),
        )
    )  # fmt: skip
    program = program_of(model, points(2, 2, 5, 5))
    kinds = [s.kind for s in program.sites]
    assert kinds == ["batch_norm", "group_norm", "instance_norm", "layer_norm", "rms_norm"]
    assert [s.owner for s in program.sites] == ["1", "2", "3", "4", "5"]
    batch, group, *_ = program.sites
    assert batch.running is not None
    assert batch.spread is None
    assert torch.equal(batch.gamma, model[1].weight)
    assert group.spread is not None
    assert group.spread.size == 2 * 9
    assert group.source == batch.node
    before, after = program.ends[batch.node]
    assert before.op.kind == "convolution"
    assert after.op.kind == "diagonal"


@pytest.mark.parametrize(
    ("wrap", "kind"),
    [
        (lambda m: parametrizations.weight_norm(m), "weight_norm"),
        (lambda m: parametrizations.spectral_norm(m), "spectral_norm"),
    ],
)
def test_normalizers_of_weights_are_sites_too(wrap: object, kind: str) -> None:
    """And the layer is measured with its effective weight."""
    model = seeded(nn.Sequential(wrap(nn.Linear(4, 3)), nn.ReLU()))  # type: ignore[operator]
    program = program_of(model, points(2, 4))
    assert [s.kind for s in program.sites] == [kind]
    effective = float(torch.linalg.matrix_norm(model[0].weight.detach(), 2))
    assert upper_of(program) == pytest.approx(effective, rel=1e-6)


def test_weight_standardization_is_seen() -> None:
    """A weight centred and divided by its spread before use."""

    def forward(s: Lambda, x: torch.Tensor) -> torch.Tensor:
        w = s.a.weight
        w = (w - w.mean(1, keepdim=True)) / (w.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
        return nn.functional.linear(x, w)

    program = program_of(seeded(Lambda(forward, a=nn.Linear(4, 3))), points(2, 4))
    assert [s.kind for s in program.sites] == ["weight_standardization"]


def _root_mean_square(x: torch.Tensor) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-3)


def test_normalizers_can_be_left_out() -> None:
    """Each is replaced by the identity, hand-written ones too; the rest of the network stays."""
    model = seeded(
        Lambda(
            lambda s, x: s.b(_root_mean_square(s.n(s.a(x)).relu())),
            a=nn.Linear(4, 4),
            b=nn.Linear(4, 2),
            n=nn.LayerNorm(4),
        )
    )
    captured = captured_of(model, points(2, 4))
    bare = build_program(captured.graph, captured.tensors, captured.at_batch(1), without_normalizers=True)
    product = [float(torch.linalg.matrix_norm(m.weight.detach(), 2)) for m in (model.a, model.b)]
    assert upper_of(bare) <= product[0] * product[1] * (1 + 1e-9)
    plain = seeded(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
    captured = captured_of(plain, points(2, 4))
    bare = build_program(captured.graph, captured.tensors, captured.at_batch(1), without_normalizers=True)
    truth = float(torch.linalg.matrix_norm((plain[2].weight @ plain[0].weight).detach(), 2))
    assert upper_of(bare) == pytest.approx(truth, rel=1e-9)


def test_an_unknown_operation_is_listed_with_every_result() -> None:
    """One atom per tensor it gives, each with the same reason, and the weights it uses are known."""
    model = seeded(Lambda(lambda s, x: torch.linalg.svd(s.a(x).unflatten(1, (2, 2)))[1], a=nn.Linear(4, 4)))
    program = program_of(model, points(2, 4))
    assert len(program.opaque) == 1
    assert "no rule for" in program.opaque[0].atom.reason
    assert program.opaque[0].atom.op.startswith("aten.")


def test_uses_of_weights_are_noted() -> None:
    """Which parameters each operation reads."""
    program = program_of(seeded(nn.Sequential(nn.Linear(4, 3), nn.LayerNorm(3))), points(2, 4))
    assert {w for names in program.used_weights.values() for w in names} == {"0.weight", "0.bias", "1.weight", "1.bias"}


def test_outputs_that_do_not_depend_on_the_input_are_left_out() -> None:
    """Only what changes with the input has a constant."""
    model = Lambda(lambda s, x: (s.p * 2, s.p + x, torch.ones(2)), p=nn.Parameter(torch.ones(3))).double()
    program = program_of(model, points(2, 3))
    assert [name for name, _ in program.outputs] == ["1"]


def test_values_are_dropped_when_they_are_done() -> None:
    """A deep network does not hold all its activations: the walk frees what nothing reads any more."""
    from normscope.operators.program import ProgramBuilder

    model = seeded(nn.Sequential(*[m for _ in range(20) for m in (nn.Linear(4, 4), nn.ReLU())]))
    captured = captured_of(model, points(2, 4))
    walk = ProgramBuilder(captured.graph, captured.tensors, captured.at_batch(1))
    walk.run()
    held = [v for v in walk.values.values() if isinstance(v, torch.Tensor) and v.shape == (1, 4)]
    assert len(held) < 5
