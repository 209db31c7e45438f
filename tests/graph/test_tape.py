"""The tape: unique names, dependence on the input, and only what the outputs need."""

from __future__ import annotations

import torch

from normscope.graph.ir import Named, Ref
from normscope.graph.tape import Tape, argument, describe


def test_names_are_unique_whatever_they_are_made_of() -> None:
    """Also where a counted name meets a given one."""
    tape = Tape()
    x = tape.input(torch.zeros(1))
    names = [tape.emit(f"aten.{op}.default", (Ref(x),)) for op in ("relu", "relu", "relu_1", "relu", "output")]
    names.append(tape.source("parameter", "args.0", torch.zeros(1)))
    names.append(tape.source("parameter", "args_0", torch.zeros(1)))
    assert len({x, *names, "output"}) == len(names) + 2


def test_motion_spreads_from_the_inputs() -> None:
    """Through positional, keyword and nested arguments, and not to what does not need them."""
    tape = Tape()
    x, w = tape.input(torch.zeros(1)), tape.source("parameter", "w", torch.zeros(1))
    free = tape.emit("aten.relu.default", (Ref(w),))
    bound = tape.emit("aten.cat.default", ((Ref(free), Ref(x)),))
    keyed = tape.emit("aten.add.Tensor", (Ref(w),), {"other": Ref(bound)})
    assert [tape.moves(Ref(name)) for name in (x, w, free, bound, keyed)] == [True, False, False, True, True]
    assert not tape.moves(Ref(tape.emit("aten.isnan.default", (Ref(bound),))))


def test_token_ids_are_held_fixed_and_what_they_look_up_is_not() -> None:
    """Sums of ids stay fixed; rows of a table move."""
    tape = Tape()
    ids, table = tape.input(torch.zeros(1, dtype=torch.long)), tape.source("parameter", "w", torch.zeros(2, 1))
    later = tape.emit("aten.add.Tensor", (Ref(ids), 1), like=torch.zeros(1, dtype=torch.long))
    rows = tape.emit("aten.embedding.default", (Ref(table), Ref(later)), like=torch.zeros(1, 1))
    assert [tape.moves(Ref(name)) for name in (ids, later, rows)] == [False, False, True]


def test_the_graph_holds_what_the_outputs_need_and_every_draw() -> None:
    """Dead code goes, inputs stay, and random operations stay so that later draws are the same."""
    tape = Tape()
    x, y = tape.input(torch.zeros(2)), tape.input(3)
    dead = tape.emit("aten.relu.default", (Ref(x),))
    draw = tape.emit("aten.rand.default", ((2,),))
    live = tape.emit("aten.neg.default", (Ref(x),), like=torch.zeros(2))
    tape.constant(torch.ones(1))
    graph = tape.graph([live], batch="2", notes=["n"])
    assert [n.name for n in graph] == [x, y, draw, live, "output"]
    assert dead not in {n.name for n in graph}
    assert (graph.front_end, graph.batch, graph.notes) == ("dispatch", "2", ("n",))


def test_constants_are_frozen_when_they_are_met() -> None:
    """What happens to the tensor later does not reach the tape."""
    tape = Tape()
    tensor = torch.zeros(2)
    name = tape.constant(tensor)
    tensor.add_(1)
    assert tape.tensors[name].sum() == 0
    assert tape.node(name).shape == (2,)


def test_arguments_and_descriptions() -> None:
    """As the graph stores them."""
    nested = [torch.float32, (torch.device("cpu"), torch.strided), torch.Generator(), 1.5]
    named = (Named("dtype", "float32"), (Named("device", "cpu"), Named("layout", "strided")), None, 1.5)
    assert argument(nested) == named
    assert argument(torch.channels_last) == Named("memory_format", "channels_last")
    assert describe(torch.zeros(2, 3, dtype=torch.int64)) == {"shape": (2, 3), "dtype": "int64"}
    assert describe((torch.zeros(1),)) == {}
