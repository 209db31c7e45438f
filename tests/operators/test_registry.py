"""Rules: found by name, most specific first; a user's own rule takes part like any other."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, captured_of, points, program_of, upper_of
from normscope.core.errors import RuleError
from normscope.graph.ir import Node
from normscope.operators import registry
from normscope.operators.expression import as_expr, atom_expr
from normscope.operators.nonlinear import Opaque, Pointwise
from normscope.operators.registry import Call, Rule, bind, expressions, find_rule, register_rule, rule


@pytest.fixture(autouse=True)
def _rules_put_back(monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_rule("aten.relu.default") is not None  # loads the rules, once
    monkeypatch.setattr(registry, "_RULES", dict(registry._RULES))


@torch.library.custom_op("normscope_test::triple", mutates_args=())
def triple(x: Tensor) -> Tensor:
    """Return three times a tensor, in a way nothing can look into."""
    return x * 3


@triple.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


triple.register_autograd(lambda context, gradient: 3 * gradient)


def _model() -> nn.Module:
    return Lambda(lambda s, x: triple(s.a(x)), a=nn.Linear(3, 3)).double()


def test_an_unknown_operation_is_opaque_and_says_how_to_register_it() -> None:
    """Listed with its name, and infinite."""
    program = program_of(_model(), points(2, 3))
    (opaque,) = program.opaque
    assert opaque.atom.op == "normscope_test.triple.default"
    assert "register_rule('normscope_test.triple.default'" in opaque.atom.reason
    assert not opaque.atom.known


def test_a_registered_linear_rule_is_measured_together_with_its_neighbours() -> None:
    """Three times the layer before it, exactly."""
    model = _model()
    register_rule("normscope_test.triple.default", lambda call: call.linear("generic", lambda z: 3 * z, [call["x"]]))
    truth = 3 * float(torch.linalg.matrix_norm(model.a.weight.detach(), 2))
    assert upper_of(program_of(model, points(2, 3))) == pytest.approx(truth, rel=1e-9)


def test_a_registered_nonlinear_rule() -> None:
    """A slope and an enclosure are all it needs."""
    model = _model()
    register_rule(
        "normscope_test.triple.default",
        lambda call: call.atom(
            Pointwise(call["x"], lambda a, b: 3.0, lambda a, b: (3 * a, 3 * b), needs_range=False), call["x"].shape
        ),
    )
    truth = 3 * float(torch.linalg.matrix_norm(model.a.weight.detach(), 2))
    assert upper_of(program_of(model, points(2, 3))) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("name", ["triple", "normscope_test.triple", "a.b.c.d"])
def test_names_without_three_parts_are_refused(name: str) -> None:
    """What the coverage table shows is what is registered."""
    with pytest.raises(RuleError, match=r"namespace\.operator\.overload"):
        register_rule(name, lambda call: call)


def test_a_rule_is_a_function() -> None:
    """Anything else is refused at once, not when the operation is met."""
    with pytest.raises(RuleError, match="function"):
        register_rule("a.b.c", 3.0)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda call: None, "call.opaque.*got NoneType"),
        (lambda call: 0.4, "got float"),
        (lambda call: call["y"], r"raised KeyError: 'y'\. Arguments of the call: x\."),
    ],
)
def test_a_rule_returns_an_expression(function: Rule, words: str) -> None:
    """Without one the operation would be taken for a constant, and the bound would be zero."""
    register_rule("normscope_test.triple.default", function)
    with pytest.raises(RuleError, match=words):
        program_of(_model(), points(2, 3))


def test_the_most_specific_rule_wins() -> None:
    """Full name, then overload, then every overload; other namespaces do not inherit from aten."""
    rule("made_up")(lambda call: "any")
    rule("made_up.Tensor")(lambda call: "tensor")
    given = atom_expr(Opaque("mine", "test", []), (2,))
    register_rule("aten.made_up.Scalar", lambda call: given)
    found = {o: find_rule(f"aten.made_up.{o}") for o in ("Tensor", "Scalar", "default")}
    assert {o: f(None) for o, f in found.items() if f is not None} == {  # type: ignore[arg-type]
        "Tensor": "tensor",
        "Scalar": given,
        "default": "any",
    }
    assert find_rule("mine.made_up.Tensor") is None
    assert find_rule("python.add") is None


def test_arguments_by_name_with_defaults() -> None:
    """As the schema has them, positional, by keyword or left out."""
    bound = bind("aten.add.Tensor", ["x", "y"], {})
    assert bound == {"self": "x", "other": "y", "alpha": 1}
    assert bind("aten.add.Tensor", ["x"], {"other": "z", "alpha": 4}) == {"self": "x", "other": "z", "alpha": 4}
    assert bind("aten.softmax.int", ["x", 1], {})["dtype"] is None


def _call(**arguments: object) -> Call:
    return Call(Node("n", "aten.add.Tensor", owner="layer.0"), arguments, torch.zeros(2, 3), "w")


def test_calls() -> None:
    """Arguments, defaults, what depends on the input, and results that know where they come from."""
    x = atom_expr(None, (2, 3))
    call = _call(self=x, other=None, items=[1, x], alpha=2)
    assert call["alpha"] == 2
    assert call.get("other", 7) == 7
    assert call.get("missing", 8) == 8
    assert call.shape == (2, 3)
    assert call.tainted() == ["self", "items"]
    made = call.linear("isometry", lambda z: z, [x])
    assert made.op is not None
    assert (made.shape, made.op.owner, made.op.weight_name) == ((2, 3), "layer.0", "w")
    opaque = call.opaque("because")
    assert isinstance(opaque.atom, Opaque)
    assert (opaque.atom.name, opaque.atom.owner, opaque.atom.op) == ("n", "layer.0", "aten.add.Tensor")
    assert len(opaque.atom.inputs) == 2


def test_further_results_are_opaque() -> None:
    """Only the first result of an operation is understood unless a rule says more."""
    x = atom_expr(None, (2,))
    call = Call(Node("n", "aten.max.dim"), {"self": x}, (torch.zeros(2), torch.zeros(3), None))
    first, second, third = call.with_rest(x, "places jump")
    assert first is x
    assert isinstance(second.atom, Opaque)
    assert second.shape == (3,)
    assert third is None
    assert _call(self=x).with_rest(x, "alone") is x


def test_expressions_in_nested_arguments() -> None:
    """Lists and tuples are looked into, anything else is not one."""
    x, y = atom_expr(None, (1,)), as_expr(torch.ones(1))
    assert expressions([x, (y, 3), "text"]) == [x, y]
    assert expressions(torch.ones(1)) == []


def test_every_rule_is_for_an_operation_torch_has() -> None:
    """No rule waits for a name that does not exist (a few are of other torch versions)."""
    names = {key.split(".")[0] for key in registry._RULES if key.count(".") == 1}
    missing = sorted(name for name in names if not hasattr(torch.ops.aten, name))
    assert len(missing) <= 0.1 * len(names), missing


def test_captured_operations_are_called_by_their_schema() -> None:
    """Every operation of a captured network binds without unknown names."""
    graph = captured_of(
        nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.GELU()).double(), points(2, 1, 5, 5)
    ).graph
    for node in graph.calls():
        bound = bind(node.op, list(node.args), dict(node.kwargs))
        assert not any(name.startswith("arg") for name in bound)
    assert len(graph.calls()) == 3
