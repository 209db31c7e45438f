"""What operations write to, and their functional twins."""

from __future__ import annotations

import pytest
import torch

from normscope.graph.functional import (
    arguments,
    functional_of,
    normalizer_in_training,
    twin_arguments,
    written_arguments,
)

aten = torch.ops.aten

TWINS = {
    "relu_.default": "relu.default",
    "add_.Tensor": "add.Tensor",
    "add.out": "add.Tensor",
    "max.dim_max": "max.dim",
    "pow_.Scalar": "pow.Tensor_Scalar",
    "pow_.Tensor": "pow.Tensor_Tensor",
    "__ior__.Tensor": "__or__.Tensor",
    "normal_.default": "normal_functional.default",
    "bernoulli_.float": "bernoulli.p",
    "transpose_.default": "transpose.int",
    "floor_divide_.Tensor": "floor_divide.default",
    "index_put_.default": "index_put.default",
    "dropout_.default": "dropout.default",
}


@pytest.mark.parametrize(("name", "twin"), TWINS.items())
def test_twins(name: str, twin: str) -> None:
    """By name where torch is regular, by the types of the arguments where it is not."""
    packet, overload = name.split(".")
    found = functional_of(getattr(getattr(aten, packet), overload))
    assert str(found) == f"aten.{twin}"
    assert not found._schema.is_mutable


def test_what_has_no_twin() -> None:
    """Nothing is made up."""
    assert functional_of(aten.fill_diagonal_.default) is None
    assert functional_of(aten.relu.default) is None


def test_every_twin_takes_the_same_arguments() -> None:
    """For all in-place operations of torch: a twin differs in what it writes, not in what it takes."""
    count = 0
    for qualified in torch._C._dispatch_get_all_op_names():
        namespace, _, rest = qualified.partition("::")
        name, _, overload = rest.partition(".")
        func = getattr(getattr(aten, name, None), overload or "default", None) if namespace == "aten" else None
        if func is None or not func._schema.is_mutable or not name.endswith("_"):
            continue
        twin = functional_of(func)
        if twin is not None:
            count += 1
            assert [str(a.type) for a in twin._schema.arguments] == [str(a.type) for a in func._schema.arguments]
    assert count > 200


def test_arguments_of_twins() -> None:
    """Outputs go, and a default that only the original has is said."""
    assert twin_arguments(aten.add.out, aten.add.Tensor, ("x", "y"), {"alpha": 2, "out": "z"}) == (
        ("x", "y"),
        {"alpha": 2},
    )
    assert twin_arguments(aten.relu_.default, aten.relu.default, ("x",), {}) == (("x",), {})
    assert twin_arguments(aten.bernoulli_.float, aten.bernoulli.p, ("x", 0.25), {}) == (("x", 0.25), {})
    x = torch.zeros(1000)
    state = torch.Generator().manual_seed(0), torch.Generator().manual_seed(0)
    args, _ = twin_arguments(aten.bernoulli_.float, aten.bernoulli.p, (x,), {})
    assert torch.equal(aten.bernoulli.p(*args, generator=state[0]), x.clone().bernoulli_(generator=state[1]))


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
