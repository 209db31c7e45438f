"""The affine program of a graph: every tensor as an affine expression of atoms, found in one pass."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from normscope.graph.interpreter import as_floating, resolve, rounded
from normscope.graph.interpreter import call as execute
from normscope.graph.ir import SOURCES, Graph, Node, Ref, map_refs
from normscope.graph.recognise import Recogniser, name_of
from normscope.graph.schemas import moves_shape, whole_arguments
from normscope.operators.expression import Expr, atom_expr, operands, reached
from normscope.operators.fourier import paired
from normscope.operators.layout import shape_only
from normscope.operators.nonlinear import Input, Opaque
from normscope.operators.normalizer import kinds_by_op, normalizers
from normscope.operators.pooling import power_pool
from normscope.operators.quadratic_form import root_of_form
from normscope.operators.recognition import find_normalizer, weight_normalizer
from normscope.operators.registry import Call, Rule, bind, expressions, find_rule
from normscope.operators.scalar.entrywise import Forms
from normscope.operators.site import Site, site_of
from normscope.operators.spread_division import rescaled
from normscope.operators.written_out import NormalizerCandidate, Surroundings

#: Products that take most of the time. If they depend on the input, only their shape matters, not the last digits.
_PRODUCTS = (
    "linear", "conv1d", "conv2d", "conv3d", "convolution", "matmul", "mm", "bmm", "addmm", "baddbmm",
    "scaled_dot_product_attention",
)  # fmt: skip


@dataclass(frozen=True)
class InputBlock:
    """A block of the network input: a floating tensor, or the output of an embedding of integer tokens."""

    name: str
    shape: tuple[int, ...]
    kind: str


@dataclass(eq=False)
class Program:
    """A network as affine expressions of atoms."""

    blocks: list[InputBlock] = field(default_factory=list)  #: the network input
    #: (name, expression) of each output that depends on the input
    outputs: list[tuple[str, Expr]] = field(default_factory=list)
    atoms: list[Expr] = field(default_factory=list)  #: every atom, in order
    sites: list[Site] = field(default_factory=list)  #: the normalizers
    layers: list[Expr] = field(default_factory=list)  #: linear operations with parameters, in order
    fixed: list[str] = field(default_factory=list)  #: integer inputs that are kept fixed (masks, positions)
    #: for each normalizer of activations, the expressions before and after it
    ends: dict[str, tuple[Expr, Expr | None]] = field(default_factory=dict)
    #: for each parameter or buffer, the nodes that read it in a way a rule understands
    used_weights: dict[str, set[str]] = field(default_factory=dict)
    opaque: list[Expr] = field(default_factory=list)  #: atoms without a finite constant that an output depends on
    total: int = 0  #: all operations that depend on the input
    #: the graph node whose value an expression is, by the expression's id
    nodes: dict[int, str] = field(default_factory=dict)
    #: for each normalizer written out, its result with scale and shift
    scaled: dict[str, Expr] = field(default_factory=dict)


class ProgramBuilder:
    """Builds a program in one pass over a graph.

    Args:
        graph: the model.
        tensors: its parameters, buffers and constants.
        inputs: reference inputs, one tensor per input node.
        without: replace each normalizer by the identity.
    """

    def __init__(
        self,
        graph: Graph,
        tensors: Mapping[str, Tensor],
        inputs: Sequence[Any],
        *,
        without: bool = False,
    ) -> None:
        self.graph, self.tensors, self.without = graph, tensors, without
        self.values: dict[str, Any] = {}
        self.exprs: dict[str, Any] = {}
        self.discrete: set[str] = set()
        self.moving: set[str] = set()  # whose shape depends on the input
        self.names: dict[str, str] = {}
        self.forms = Forms()
        self.current = ""  # the node whose expression is being made
        self.found: set[str] = set()  # nodes at which normalizers end
        self.noted: set[int] = set()  # ids of expressions already recorded
        self.program = Program()
        self.around = Surroundings(
            graph,
            Recogniser(graph, self._number, lambda name: isinstance(self.constant_at(name), Tensor)),
            graph.users(),
            lambda name: self.exprs.get(name),
            self.constant_at,
            lambda name: self.names.get(name, ""),
            lambda name: name in self.found,
        )
        self._inputs = iter(inputs)

    def run(self) -> Program:
        """Visit every node and return the program."""
        dying = self.graph.last_uses
        kept = self._needed_later()
        for node in self.graph:
            if node.op == "output":
                self._finish(node)
                break
            if node.op in SOURCES:
                self._source(node)
            else:
                self._call(node)
            for name in dying[node.name]:
                if name not in kept and not isinstance(self.values.get(name), int):  # sizes are read later, too
                    self.values.pop(name, None)
        return self.program

    def _needed_later(self) -> set[str]:
        """Return the nodes whose values may be needed after their last use, to recognize normalizers."""
        return {n.name for n in self.graph if name_of(n) in ("sub", "to", "_to_copy")} | {
            a for n in self.graph if name_of(n) in ("sub", "to", "_to_copy", "pow", "mul") for a in n.inputs()
        }

    def _number(self, name: str) -> float | None:
        """Return the value of a constant scalar."""
        value = self.constant_at(name)
        if not isinstance(value, Tensor | int | float) or isinstance(value, bool):
            return None
        return None if isinstance(value, Tensor) and value.numel() != 1 else float(value)

    def _source(self, node: Node) -> None:
        if node.op != "input":
            self.values[node.name] = self.tensors[node.target].detach()
            self.names[node.name] = node.target if node.op == "parameter" else ""
            return
        value = next(self._inputs)
        self.values[node.name] = value
        if isinstance(value, Tensor) and value.is_floating_point():
            self.exprs[node.name] = self._block(node.name, tuple(value.shape), "input")
        else:
            self.discrete.add(node.name)
            self.program.fixed.append(node.name)

    def _block(self, name: str, shape: tuple[int, ...], kind: str) -> Expr:
        rule = Input(len(self.program.blocks), kind)
        rule.name = name
        self.program.blocks.append(InputBlock(name, shape, kind))
        expr = atom_expr(rule, shape)
        self.program.atoms.append(expr)
        self.noted.add(expr.id)
        return expr

    def _call(self, node: Node) -> None:
        """Execute a node on the reference values, and if it depends on the input, apply its rule."""
        with torch.no_grad():
            value = self._executed(node, self.values)
        self.values[node.name] = value
        inputs = node.inputs()
        if not any(name in self.exprs for name in inputs):
            self._constant(node, value)
            return
        if node.op == "getitem":
            parts = self.exprs[node.args[0].name]
            part = parts[node.args[1]] if isinstance(parts, list) else parts
            self.moving |= {node.name} if node.args[0].name in self.moving else set()
            if part is not None:
                self.exprs[node.name] = part
            return
        self.program.total += 1
        result = self._apply(node, value)
        moved = [self.values.get(name) for name in inputs if name in self.moving]
        if moved and (not expressions(result) or any(isinstance(v, Tensor) and not v.numel() for v in moved)):
            result = self._size(node, value)  # of an empty tensor a rule would conclude that it cannot grow
        unknown = isinstance(result, Expr) and isinstance(result.atom, Opaque) and not result.numel
        if unknown or self._moves(node):
            self.moving.add(node.name)
        if expressions(result):
            self.exprs[node.name] = result
            self._register(node, result)

    def _executed(self, node: Node, values: Mapping[str, Any]) -> Any:
        """Execute a node in float64, which stands for exact arithmetic, whatever the dtype of the weights."""
        dtypes = {name: self.graph[name].dtype for name in node.inputs()}
        if name_of(node) not in _PRODUCTS or not any(name in self.exprs for name in dtypes):
            try:
                given = as_floating({name: values[name] for name in dtypes}, torch.float64)
                return rounded(node, execute(node, given, torch.float64))
            except (RuntimeError, NotImplementedError):  # an operation that supports only its own precision
                pass
        return execute(node, {name: as_floating(values[name], getattr(torch, dtypes[name], None)) for name in dtypes})

    def _constant(self, node: Node, value: Any) -> None:
        """Keep track of tokens, parameters and weight normalizers where nothing depends on a floating input."""
        inputs = node.inputs()
        if any(name in self.discrete for name in inputs):
            if name_of(node) == "embedding" and isinstance(value, Tensor):
                self.program.total += 1
                self.program.fixed = [f for f in self.program.fixed if f not in inputs]
                self.exprs[node.name] = self._block(node.name, tuple(value.shape), "embedding output")
                self._used(node)
                return
            self.discrete.add(node.name)
        self.names[node.name] = next((self.names[n] for n in inputs if self.names.get(n)), "")
        first = value[0] if isinstance(value, tuple | list) and value else value
        if isinstance(first, Tensor) and self.names[node.name]:
            self._weight_site(node)

    def _weight_site(self, node: Node) -> None:
        """Record normalizers that act on weights."""
        kind = weight_normalizer(node, self.around)
        array = kinds_by_op().get(name_of(node), "") if kind is None else ""
        if kind is None and not (array and self.around.is_weight(node.inputs()[0])):
            return
        value, name = self.values[node.name], self.names[node.name]
        shape = tuple((value[0] if isinstance(value, tuple | list) else value).shape)
        owner = node.owner.split(".parametrizations.")[0] or name
        self.program.sites.append(Site(node.name, name, owner, kind or array, shape=shape, of_array=kind is None))
        if kind is not None:
            self.found.add(node.name)

    def _apply(self, node: Node, value: Any) -> Any:
        """Return the expression(s) of a node by recognition, rule, or as opaque."""
        args = map_refs(node.args, self._argument)
        kwargs = {key: map_refs(v, self._argument) for key, v in node.kwargs}
        weight = next((self.names[n] for n in node.inputs() if self.names.get(n)), "")
        self._used(node)
        call = Call(node, bind(node.op, args, kwargs) if not node.op.startswith("python.") else {}, value, weight)
        if node.op.startswith("aten.") and whole_arguments(resolve(node.op)) & set(call.tainted()):
            self.moving.add(node.name)
            return call.opaque("a size, position or flag that depends on the input is discontinuous", known=True)
        found = self._written_out(call)
        if found is not None:
            return found
        kind, rule = kinds_by_op().get(name_of(node)), find_rule(node.op)
        if kind and rule is not None:
            return self._normalizer(call, kind, rule)
        inner = (value, *(self.values.get(n) for n in node.inputs()))
        if rule is not shape_only and any(isinstance(v, Tensor) and v.is_complex() for v in inner):
            turned = paired(call, self._read(node))
            return turned or self._opaque(call)  # all other rules are for real numbers
        if rule is None:
            return self._opaque(call)
        pooled = power_pool(self.graph, call, self.exprs) if name_of(node) == "pow" else None
        if pooled is not None:
            return pooled
        found = root_of_form(call, self.forms.refined(call, rule(call)), self.around)
        if self._is_step(node, value, found):
            return call.opaque(f"converting real numbers to {node.dtype or value.dtype} is discontinuous", known=True)
        return found

    def _moves(self, node: Node) -> bool:
        """Return whether the shape of a result depends on the input's numbers, as that of ``x[x > 0]`` does."""
        if any(name in self.moving for name in node.inputs()):
            return True
        function = resolve(node.op) if node.op.startswith("aten.") else None
        return function is not None and moves_shape(function, [v for v in self._read(node) if isinstance(v, Tensor)])

    def _read(self, node: Node) -> list[Any]:
        """Return the input-dependent values that a node reads."""
        return [self.values.get(name) for name in node.inputs() if name in self.exprs]

    def _size(self, node: Node, value: Any) -> Any:
        """Return a value read from a shape that depends on the input, as opaque."""
        call = Call(node, {name: self.exprs[name] for name in node.inputs() if name in self.exprs}, value)
        return call.opaque("a size that depends on the input is discontinuous", known=True)

    def _is_step(self, node: Node, value: Any, found: Any) -> bool:
        """Return whether real numbers were converted to integers or 8-bit floats, e.g. written into such a tensor."""
        if not isinstance(value, Tensor) or not isinstance(found, Expr):
            return False
        named = getattr(torch, node.dtype, value.dtype)  # the value itself may be computed wider
        if value.is_floating_point() and (named.itemsize > 1 or not named.is_floating_point):
            return False
        real = any(isinstance(v, Tensor) and v.is_floating_point() for v in self._read(node))
        return real and not isinstance(found.atom, Opaque)

    def _opaque(self, call: Call) -> Any:
        """Return an unknown operation as opaque, one atom for each tensor it returns."""
        reason = f"no rule for {call.node.op}: register one with normscope.register_rule({call.node.op!r}, rule)"
        if call.node.op.startswith("normscope."):
            reason = "what was done with this value outside torch, or with its memory, is unknown"
        return call.opaque(reason)

    def _argument(self, ref: Ref) -> Any:
        """Return the expression or the plain value of a referenced node."""
        found = self.exprs.get(ref.name)
        return self.values.get(ref.name) if found is None else found

    def _used(self, node: Node) -> None:
        """Record the parameters an operation uses, for the coverage in parameters."""
        names = {self.names[n] for n in node.inputs() if self.names.get(n)}
        if names:
            self.program.used_weights.setdefault(node.name, set()).update(names)

    def _register(self, node: Node, result: Any) -> None:
        """Record the atoms and parametrized linear operations created for a node."""
        if isinstance(result, Expr):
            self.program.nodes.setdefault(result.id, node.name)
        for item in reached(expressions(result), operands, self.noted):
            self.noted.add(item.id)
            if item.op is None:
                self.program.atoms.append(item)
            elif item.op.kind in ("matrix", "convolution") and item.op.weight_name:
                self.program.layers.append(item)

    def _written_out(self, call: Call) -> Any:
        """Return the expression of a written-out normalizer that ends here, or ``None``."""
        self.current = call.node.name
        found = find_normalizer(NormalizerCandidate(call, self.around))
        self.current = ""
        if found is None:
            return None
        self._note(found.site, found.source, None)
        if self.without:
            return found.source
        return None if found.result is None else found.result()

    def constant_at(self, name: str) -> Any:
        """Return the value of a node that does not depend on a floating input, even if not reached yet, or ``None``."""
        if name in self.exprs or name == self.current:
            return None
        if self.values.get(name) is not None:
            return self.values[name]
        node = self.graph[name]
        if node.op in ("parameter", "buffer", "constant"):
            return self.tensors[node.target].detach()
        inputs = {n: self.constant_at(n) for n in node.inputs()}
        if node.op in SOURCES or any(v is None for v in inputs.values()):
            return None
        result = self._executed(node, inputs)
        return result if isinstance(result, Tensor) else None

    def _normalizer(self, call: Call, kind: str, rule: Rule) -> Any:
        """Apply the rule of a normalizer and record it; an input-dependent scale or shift is applied after it."""
        x = call.get("input", call.get("self"))
        moving = {name for name in call.tainted() if name not in ("input", "self")}
        if not isinstance(x, Expr) or not moving <= {"weight", "bias"}:
            return call.opaque("a normalizer whose parameters depend on the input has no rule")
        bare = replace(call, arguments=call.arguments | {"weight": None, "bias": None}) if moving else call
        result = rule(bare)
        out = result[0] if isinstance(result, list) else result
        site = site_of(bare, (normalizers()[kind].adaptive if moving else "") or kind, x, out)
        if moving:
            per_channel = len(x.shape) > 2 and (site.spread is None or site.spread.channel_axis is not None)
            out = rescaled(call, out, call["weight"], call.get("bias"), per_channel=per_channel)
        self._note(site, x, out)
        out = x if self.without else out
        return [out, *result[1:]] if isinstance(result, list) else out

    def _note(self, site: Site, source: Expr, out: Expr | None) -> None:
        """Record a normalizer with its input and output."""
        self.program.sites.append(site)
        self.found.add(site.node)
        self.program.ends[site.node] = (source, out)

    def _finish(self, node: Node) -> None:
        """Record the outputs, and the atoms and layers they depend on."""
        for ref, name in zip(node.args, self.graph.output_names or [r.name for r in node.args], strict=True):
            expr = self.exprs.get(ref.name)
            if isinstance(expr, Expr):
                self.program.outputs.append((name, expr))
        ends = ((site.node, self.exprs.get(site.end)) for site in self.program.sites if site.end)
        self.program.scaled = {name: expr for name, expr in ends if isinstance(expr, Expr)}
        used = reached((expr for _, expr in self.program.outputs), operands)
        atoms, layers = ({e.id for e in known} for known in (self.program.atoms, self.program.layers))
        self.program.atoms = [e for e in used if e.id in atoms]
        self.program.layers = [e for e in used if e.id in layers and e.atoms]  # a layer on a constant moves nothing
        self.program.opaque = [a for a in self.program.atoms if isinstance(a.atom, Opaque)]


def build_program(
    graph: Graph,
    tensors: Mapping[str, Tensor],
    inputs: Sequence[Any],
    *,
    without_normalizers: bool = False,
) -> Program:
    """Return the affine program of a graph at the shapes of the given inputs."""
    return ProgramBuilder(graph, tensors, inputs, without=without_normalizers).run()
