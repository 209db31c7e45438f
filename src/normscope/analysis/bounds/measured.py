"""What the bounds need to know of a network: norms of layers, constants, the chain, gradients of margins."""

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from normscope.analysis.bounds.chain import chain_of, has_biases
from normscope.analysis.bounds.folded import Folded
from normscope.analysis.bounds.scores import Scores
from normscope.analysis.capacity import begin
from normscope.analysis.context import Progress, Work
from normscope.analysis.end_to_end import everywhere_of
from normscope.analysis.layers import layers, normalizers
from normscope.analysis.options import Options
from normscope.core.result import LayerResult, NormalizerResult
from normscope.core.value import Kind, Value
from normscope.generalization.margin_bounds import ChainLayer
from normscope.generalization.margins import margins
from normscope.graph.capture import Captured
from normscope.graph.interpreter import run
from normscope.graph.ir import Node
from normscope.lipschitz.composition import Composition, Domain
from normscope.lipschitz.local.steps import Steps

#: Relative width of norms: bounds of networks are decades wide.
TOLERANCE = 3e-2
#: Samples at which gradients are taken.
GRADIENTS = 64


@dataclass(eq=False)
class Network:
    """A network under a microscope; every part is measured when it is first asked for."""

    captured: Captured  #: the network
    say: Progress  #: progress

    @functools.cached_property
    def work(self) -> Work:
        """Return the walk of its graph."""
        self.say("walking the graph")
        return begin(self.captured, Options(tolerance=TOLERANCE), self.say, torch.nn.Identity())

    @functools.cached_property
    def folded(self) -> Folded:
        """Return it with BatchNorm folded into its weights."""
        return Folded(self.captured)

    @functools.cached_property
    def steps(self) -> Steps:
        """Return bounds of its linear operations, shared between balls."""
        return Steps(self.work.norms)

    @functools.cached_property
    def layers(self) -> list[LayerResult]:
        """Return the norm of every linear layer."""
        return layers(self.work)

    @functools.cached_property
    def normalizers(self) -> list[NormalizerResult]:
        """Return the constants of every normalizer."""
        self.work.layers = self.layers
        return normalizers(self.work)

    @functools.cached_property
    def constant(self) -> Value:
        """Return the certified Lipschitz constant of the scores on all inputs."""
        self.say("composing the Lipschitz constant")
        found = Composition(self.work.program, Domain(everywhere_of(self.work)), self.work.norms).total()[0]
        return Value(found, Kind.CERTIFIED, statement="normscope F10", mode="running")

    @functools.cached_property
    def chain(self) -> list[ChainLayer]:
        """Return it as a chain of layers."""
        self.say("norms of the chain of layers")
        return chain_of(self.work.program, self.work.norms)

    @property
    def bias_square(self) -> int:
        """Return the square of the constant that is carried beside an input for the biases; zero without any."""
        entries = self.work.program.atoms[0].numel
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
        """Return how many floating numbers it is made of, running statistics included."""
        return sum(t.numel() for t in self.captured.tensors.values() if t.is_floating_point())


def gradient_norms(network: Network, scores: Scores) -> tuple[Tensor, Tensor]:
    """Return margins of some training samples and the norms of their gradients in the input, one sample at a time."""
    margin, gradients = _margin_gradients(network, scores, inside=False)
    return margin, gradients["input"][1].norm(dim=1)


def layer_margins(network: Network, scores: Scores) -> dict[str, Tensor]:
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
    network: Network, scores: Scores, *, inside: bool
) -> tuple[Tensor, dict[str, tuple[Tensor, Tensor]]]:
    """Return margins, and by place (the input, each activation) features and the gradients of the margins in them."""
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
