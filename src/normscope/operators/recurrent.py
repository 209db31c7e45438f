"""Recurrent layers, unrolled over time into the operations they are made of."""

from typing import Any

import torch
from torch import Tensor

from normscope.operators.activation import function
from normscope.operators.arithmetic import Product
from normscope.operators.expression import Expr, as_expr
from normscope.operators.joining import piece, side_by_side
from normscope.operators.layout import add_terms, permuted, reshaped, scaled
from normscope.operators.matrix import matrix
from normscope.operators.registry import Call, rule

#: Longest sequence that is unrolled; beyond it the graph of atoms would be larger than the answer is worth.
LONGEST = 512


def _times(call: Call, a: Expr, b: Expr) -> Expr:
    return call.atom(Product(a, b), a.shape)


def _plus(call: Call, *terms: Expr) -> Expr:
    return add_terms(call.shaped(terms[0].shape), terms)


def _complement(call: Call, z: Expr) -> Expr:
    """Return ``1 - z`` with its range kept: the sigmoid of the negated argument."""
    gate = z.atom.inputs[0]  # z is a sigmoid
    return function(call, scaled(call.shaped(gate.shape), gate, torch.tensor(-1.0, dtype=torch.float64)), "sigmoid")


def _gates(call: Call, x: Expr, count: int) -> list[Expr]:
    size = x.shape[-1] // count
    shape = (*x.shape[:-1], size)
    return [piece(call, x, len(x.shape) - 1, i * size, shape) for i in range(count)]


def _lstm_step(call: Call, pre: Expr, h: Expr, c: Expr, weight: Tensor, bias: Tensor | None) -> tuple[Expr, Expr]:
    """One step: ``c' = f c + i g``, ``h' = o tanh(c')``."""
    gates = _plus(call, pre, matrix(call, h, weight, bias=bias))
    i, f, g, o = _gates(call, gates, 4)
    i, f, o = (function(call, t, "sigmoid") for t in (i, f, o))
    g = function(call, g, "tanh")
    c = _plus(call, _times(call, f, c), _times(call, i, g))
    return _times(call, o, function(call, c, "tanh")), c


def _projected_step(call: Call, pre: Expr, h: Expr, c: Expr, weight: Tensor, bias: Tensor | None, out: Tensor) -> Any:
    """One step of an LSTM with a projection: ``h' = W (o tanh(c'))``."""
    h, c = _lstm_step(call, pre, h, c, weight, bias)
    return matrix(call, h, out), c


def _gru_step(call: Call, pre: Expr, h: Expr, c: Expr, weight: Tensor, bias: Tensor | None) -> tuple[Expr, Expr]:
    """One step: ``n = tanh(x_n + r h_n)``, ``h' = (1 - z) n + z h``."""
    r_x, z_x, n_x = _gates(call, pre, 3)
    r_h, z_h, n_h = _gates(call, matrix(call, h, weight, bias=bias), 3)
    r = function(call, _plus(call, r_x, r_h), "sigmoid")
    z = function(call, _plus(call, z_x, z_h), "sigmoid")
    n = function(call, _plus(call, n_x, _times(call, r, n_h)), "tanh")
    h = _plus(call, _times(call, _complement(call, z), n), _times(call, z, h))
    return h, h


def _rnn_step(name: str) -> Any:
    """One step of a plain recurrent network: ``h' = g(x + W h)``."""

    def step(call: Call, pre: Expr, h: Expr, c: Expr, weight: Tensor, bias: Tensor | None) -> tuple[Expr, Expr]:
        h = function(call, _plus(call, pre, matrix(call, h, weight, bias=bias)), name)
        return h, h

    return step


def _direction(call: Call, x: Expr, state: list[Expr], params: list[Any], step: Any, reverse: bool) -> Any:
    """Run one direction of one layer over (time, batch, features); returns outputs and last states."""
    w_in, w_h, b_in, b_h, *out = params
    pre = matrix(call, x, w_in, bias=b_in)
    h, c = state
    outputs: list[Expr] = []
    steps = range(x.shape[0])
    for t in reversed(steps) if reverse else steps:
        h, c = step(call, piece(call, pre, 0, t, pre.shape[1:]), h, c, w_h, b_h, *out)
        outputs.append(h)
    return outputs[::-1] if reverse else outputs, h, c


_STEPS = {"lstm": _lstm_step, "gru": _gru_step, "rnn_tanh": _rnn_step("tanh"), "rnn_relu": _rnn_step("relu")}


@rule("lstm.input", "gru.input", "rnn_tanh.input", "rnn_relu.input")
def recurrent(call: Call) -> Any:
    """A stack of recurrent layers."""
    name = call.name
    x = as_expr(call["input"])
    if len(x.shape) != 3 or x.shape[1 if call["batch_first"] else 0] > LONGEST:
        return call.opaque(f"{name} without batch axis, or on more than {LONGEST} steps, is not unrolled")
    per_layer = 4 if call["has_biases"] else 2
    params = list(call["params"])
    directions = 2 if call["bidirectional"] else 1
    projected = len(params) == (per_layer + 1) * directions * call["num_layers"]
    step = _projected_step if projected else _STEPS[name]
    per_layer += projected
    if len(params) != per_layer * directions * call["num_layers"] or any(isinstance(p, Expr) for p in params):
        return call.opaque(f"{name} whose weights depend on the input has no rule")
    if call.get("train", False) and float(call.get("dropout", 0.0)) > 0:
        return call.opaque(f"{name} with active dropout is random")
    hidden = call["hx"]
    states = [as_expr(s) for s in (hidden if isinstance(hidden, list | tuple) else [hidden, hidden])]
    if call["batch_first"]:
        x = permuted(call, x, [1, 0, 2])
    last_h, last_c = [], []
    for layer in range(call["num_layers"]):
        sides = []
        for d in range(directions):
            index = layer * directions + d
            chosen = params[index * per_layer : (index + 1) * per_layer]
            chosen = chosen if call["has_biases"] else [*chosen[:2], None, None, *chosen[2:]]
            state = [piece(call, s, 0, index, s.shape[1:]) for s in states]
            outputs, h, c = _direction(call, x, state, chosen, step, reverse=d == 1)
            sides.append(_stack(call, outputs))
            last_h.append(h)
            last_c.append(c)
        x = sides[0] if directions == 1 else side_by_side(sides, 2, call)
    results = [permuted(call, x, [1, 0, 2]) if call["batch_first"] else x, _stack(call, last_h)]
    return [*results, _stack(call, last_c)] if name == "lstm" else results


@rule("lstm_cell", "gru_cell", "rnn_tanh_cell", "rnn_relu_cell")
def cell(call: Call) -> Any:
    """One step of a recurrent layer."""
    name = call.name.removesuffix("_cell")
    hidden = call["hx"]
    h, c = (as_expr(s) for s in (hidden if isinstance(hidden, list | tuple) else [hidden, hidden]))
    weights = [call[n] for n in ("w_ih", "w_hh", "b_ih", "b_hh")]
    if any(isinstance(w, Expr) for w in weights):
        return call.opaque("a recurrent cell whose weights depend on the input")
    pre = matrix(call, as_expr(call["input"]), weights[0], bias=weights[2])
    h, c = _STEPS[name](call, pre, h, c, weights[1], weights[3])
    return [h, c] if name == "lstm" else h


def _stack(call: Call, parts: list[Expr]) -> Expr:
    shape = (1, *parts[0].shape)
    rows = [reshaped(call, p, shape) for p in parts]
    return rows[0] if len(rows) == 1 else side_by_side(rows, 0, call)
