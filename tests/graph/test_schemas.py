"""What operations write to."""

from __future__ import annotations

import torch

from normscope.graph.schemas import arguments, normalizer_in_training, written_arguments

aten = torch.ops.aten


def test_written_arguments() -> None:
    """As the schema declares them."""
    x, y = torch.zeros(2), torch.zeros(2)
    assert written_arguments(aten.add.Tensor, (x, y), {}) == []
    assert written_arguments(aten.add.out, (x, 1), {"out": y})[0] is y
    many = written_arguments(aten._foreach_add_.Scalar, ([x, y], 1.0), {})
    assert [t is o for t, o in zip(many, (x, y), strict=True)] == [True, True]
    names = [a.name for a, _ in arguments(aten.add.out, (x, 1), {"out": y})]
    assert names == ["self", "other", "out"]


def test_normalizers_move_their_statistics_in_training_only() -> None:
    """And torch's schema does not say so."""
    x, mean, var = torch.randn(4, 2), torch.zeros(2), torch.ones(2)
    for op, flag in ((aten.batch_norm.default, True), (aten.instance_norm.default, True)):
        assert not op._schema.is_mutable
        for training in (flag, not flag):
            args = (x[..., None], None, None, mean, var, training, 0.1, 1e-5, False)
            assert len(normalizer_in_training(op, args, {})) == (2 if training else 0)
            before = mean.clone()
            op(*args)
            assert torch.equal(mean, before) != training
    assert (
        normalizer_in_training(aten.batch_norm.default, (x, None, None, None, None, True, 0.1, 1e-5, False), {}) == []
    )
    assert normalizer_in_training(aten.layer_norm.default, (x, [2]), {}) == []
