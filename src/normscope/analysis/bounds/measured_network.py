"""Quantities of a network that bounds are computed from: norms of layers, constants, the chain, margin gradients."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.analysis.bounds.chain import chain_of, has_biases
from normscope.analysis.bounds.folded_network import FoldedNetwork
from normscope.analysis.bounds.scores import Scores
from normscope.analysis.context import AnalysisContext, AnalysisRequest, Progress, full_context
from normscope.analysis.layers import layer_rows, normalizer_rows
from normscope.analysis.options import Options
from normscope.core.result import LayerResult, NormalizerResult
from normscope.core.value import Kind, Value
from normscope.generalization.margin_bounds import ChainLayer
from normscope.generalization.margins import margins
from normscope.graph.capture import Captured
from normscope.graph.interpreter import run
from normscope.graph.ir import Node
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.local.linear_steps import Steps

#: Relative width of norms: bounds of networks are decades wide.
TOLERANCE = 3e-2
#: Samples at which gradients are taken.
GRADIENTS = 64


@dataclass(eq=False)
class MeasuredNetwork:
    """A network and what the bounds need of it; every quantity is computed on first use."""

    captured: Captured  #: the network
    say: Progress  #: progress

    @functools.cached_property
    def context(self) -> AnalysisContext:
        """Return the context of an analysis without data."""
        self.say("walking the graph")
        request = AnalysisRequest(torch.nn.Identity(), options=Options(tolerance=TOLERANCE), say=self.say)
        return full_context(request, self.captured)

    @functools.cached_property
    def folded(self) -> FoldedNetwork:
        """Return the network with BatchNorm folded into its weights."""
        return FoldedNetwork(self.captured)

    @functools.cached_property
    def steps(self) -> Steps:
        """Return bounds of its linear operations, which all balls share."""
        return Steps(self.context.norms)

    @functools.cached_property
    def layers(self) -> list[LayerResult]:
        """Return the norm of every linear layer."""
        return layer_rows(self.context, [])

    @functools.cached_property
    def normalizers(self) -> list[NormalizerResult]:
        """Return the constants of every normalizer."""
        return normalizer_rows(self.context, None, self.layers, [])

    @functools.cached_property
    def constant(self) -> Value:
        """Return the certified Lipschitz constant of the scores on all inputs."""
        self.say("composing the Lipschitz constant")
        found = Composition(self.context.program, Domain(), self.context.norms).total()[0]
        return Value(found, Kind.CERTIFIED, statement="normscope F10", mode="running")

    @functools.cached_property
    def chain(self) -> list[ChainLayer]:
        """Return the network as a chain of layers."""
        self.say("norms of the chain of layers")
        return chain_of(self.context.program, self.context.norms)

    @property
    def bias_square(self) -> int:
        """Return the square of the constant that is carried beside an input for the biases; zero without any."""
        entries = self.context.program.atoms[0].numel
        return entries if has_biases(self.chain, entries) else 0

    def inputs_norm(self, scores: Scores) -> float:
        """Return ``||X||_F``, the constant of the biases included."""
        return math.sqrt(scores.square + scores.samples * self.bias_square)

    def radius(self, box: tuple[Tensor, Tensor]) -> float:
        """Return the largest norm of an input in a box, the constant of the biases included."""
        far = torch.maximum(box[0].abs(), box[1].abs())
        return math.sqrt(float(far.square().sum()) + self.bias_square) * (1 + 1e-12)

    @property
    def parameters(self) -> int:
        """Return the number of its floating-point parameters, running statistics included."""
        return sum(t.numel() for t in self.captured.tensors.values() if t.is_floating_point())


def gradient_norms(network: MeasuredNetwork, scores: Scores) -> tuple[Tensor, Tensor]:
    """Return the margins of some training samples, and the norm of each margin's gradient with respect to the input."""
    margin, gradients = _margin_gradients(network, scores, inside=False)
    return margin, gradients["input"][1].norm(dim=1)


def layer_margins(network: MeasuredNetwork, scores: Scores) -> dict[str, Tensor]:
    r"""Return the margins of some training samples as distances in each hidden layer, over the spread of its features.

    ``margin/(||grad_z margin|| sqrt(nu))`` with ``z`` what an activation gives and ``nu`` the total variance of ``z``
    over the samples (Jiang et al. 2019): it does not move when a layer is rescaled.
    """
    margin, gradients = _margin_gradients(network, scores, inside=True)
    found = {}
    for name, (features, slopes) in gradients.items():
        spread = float(features.var(0).sum().sqrt())
        found[name] = margin / (slopes.norm(dim=1) * spread).clamp_min(1e-300)
    return found


def _margin_gradients(
    network: MeasuredNetwork, scores: Scores, *, inside: bool
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Return margins and, for the input and each activation, its values and the gradients of the margins in them."""
    captured = network.captured
    some = scores.some[:GRADIENTS].detach().clone().to(captured.example[0].dtype).requires_grad_(True)
    labels = scores.labels[scores.chosen[:GRADIENTS]]
    places: dict[str, Tensor] = {"input": some}

    def visit(node: Node, value: Any, values: Any) -> None:
        if inside and node.op.split(".")[-2:-1] in (["relu"], ["relu_"], ["gelu"], ["silu"], ["tanh"]):
            places[node.owner or node.name if node.owner not in places else node.name] = value

    with torch.enable_grad():
        outputs = run(captured.graph, captured.tensors, [some], visit)[0]
        margin = margins(outputs, labels)
        found = torch.autograd.grad(margin.sum(), list(places.values()))
    pairs = zip(places.items(), found, strict=True)
    return margin.detach().double(), {
        name: (z.detach().flatten(1).double(), g.flatten(1).double()) for (name, z), g in pairs
    }
