"""A randomized network trained for its PAC-Bayes bound: the prior from half of the data, the bound from the other."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from normscope.analysis.around_data import RATE
from normscope.analysis.bounds.folded_network import FoldedNetwork
from normscope.analysis.bounds.result import RefusedError
from normscope.analysis.bounds.scores import class_scores, labelled
from normscope.generalization.pac_bayes import relative_divergence
from normscope.graph.capture import Captured, capture
from normscope.graph.inputs import ModelInputs
from normscope.graph.wrappers import uncompiled
from normscope.lipschitz.cost import forward_cost, overhead
from normscope.operators.program import Program

#: Samples of a step, most passes over a half or steps where it is small, and step sizes of prior and posterior.
BATCH, PASSES, FEW, PRIOR_RATE, RATE_OF_NOISE = 128, 20, 1000, 2e-3, 1e-2
#: Noise of the prior relative to the root mean square of a tensor that is tried, and what it may cost in errors.
LEVELS, COST = (0.3, 0.2, 0.1, 0.05, 0.02), 0.02
#: Least probability in the cross-entropy of the training objective.
CLIP = 1e-4
#: Fewest and most draws of the weights at the end, samples per draw, and their share of the time.
LEAST_DRAWS, MOST_DRAWS, EACH, SHARE = 100, 2000, 32, 0.2
#: Fewest samples in each half of the data.
LEAST = 8
#: Bytes of training data that are kept in memory.
LARGEST = 2**31


@dataclass(frozen=True)
class TrainedPosterior:
    """A Gaussian over the weights of a network of the same architecture."""

    divergence: float  #: from the prior
    samples: int  #: of the bound, which the prior has not seen
    loss: float  #: mean error over draws of the weights and of those samples
    apart: float  #: mean share of test inputs on which it decides unlike the network that was given
    draws: int  #: of the weights, for each of the two
    prior_error: float  #: of the prior's mean on its own samples
    level: float  #: noise of the prior, relative to each tensor
    steps: int  #: of training, of prior and posterior each


def trained_posterior(
    model: nn.Module,
    captured: Captured,
    data: tuple[Any, Any],
    seconds: float,
    program: Program,
    seed: int,
    say: Callable[[str], None],
    start: nn.Module | None = None,
) -> TrainedPosterior:
    """Train a prior on a random half of the training data, and from there a posterior for the bound on the other half.

    Every parameter is drawn anew before the prior is trained, so nothing of the network that was given enters.
    How long it trains follows from the seconds and the size of the network, not from a clock.

    ``data`` is training data, and test data whose inputs are used alone. ``start`` is a network of the same
    architecture that has not seen the data, to begin with.
    """
    x, y = _collected(data[0], "train")
    u = _collected(data[1], "test")[0]
    wide = torch.promote_types(captured.example[0].dtype, torch.float32)  # half precision does not train
    x, u = x.to(wide), u.to(wide)
    source = torch.Generator().manual_seed(seed)
    order = torch.randperm(len(x), generator=source)
    first, second = order[: len(x) // 2], order[len(x) // 2 :]
    if len(first) < LEAST or not len(u):
        raise RefusedError(f"it needs at least {2 * LEAST} training samples: half for the prior, half for the bound")
    cost = forward_cost(program)
    each = 3 * (cost * BATCH + overhead(program)) / RATE
    steps = max(1, min(int((1 - SHARE) * seconds / (2 * each)), max(FEW, PASSES * len(first) // BATCH)))
    say(f"training a prior: {steps} steps")
    begin = redrawn(model, seed) if start is None else copy.deepcopy(start).requires_grad_(True)
    prior = _trained(begin.to(wide), x[first], y[first], steps, source)
    say(f"training a posterior: {steps} steps")
    noisy = _Noisy(capture(prior.eval(), ModelInputs((x[:8],))), [n for n, _ in model.named_parameters()])
    level = noisy.choose_level(x[first], y[first], source)
    noisy.train(x[second], y[second], steps, source)
    drawing = (cost * EACH + overhead(program) + 20 * noisy.entries) / RATE
    draws = int(min(MOST_DRAWS, max(LEAST_DRAWS, SHARE * seconds / (2 * drawing))))
    say(f"drawing the weights {draws} times")
    loss = noisy.mean(x[second], lambda i: y[second][i], draws, source)
    apart = noisy.mean(u, lambda i: class_scores(captured, captured.tensors, u[i]).argmax(1), draws, source)
    with torch.no_grad():
        batches = zip(x[first].split(512), y[first].split(512), strict=True)
        base = torch.cat([prior(b).argmax(1) != c for b, c in batches]).double().mean()
    return TrainedPosterior(noisy.divergence, len(second), loss, apart, draws, float(base), level, steps)


def redrawn(model: nn.Module, seed: int) -> nn.Module:
    """Return a copy of a network with every parameter reinitialized and running statistics reset.

    Parameters are made NaN first, so that one that its module does not draw again is found and refused.
    """
    try:
        net = copy.deepcopy(uncompiled(model)).requires_grad_(True)
    except RuntimeError as error:
        raise RefusedError(f"the network cannot be copied: {str(error).splitlines()[0]}") from None
    with torch.no_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for p in net.parameters():
            p.fill_(math.nan)
        for module in net.modules():
            reset = getattr(module, "reset_parameters", None) or getattr(module, "_reset_parameters", None)
            if reset is not None:
                reset()
    for name, p in net.named_parameters():
        if not bool(p.isfinite().all()):
            raise RefusedError(
                f"parameter {name} is not redrawn by reset_parameters, so a prior would have seen the "
                "data; pass the network before training (start=)"
            )
    return net


def _collected(data: Any, what: str) -> tuple[Tensor, Tensor]:
    """Return all inputs and labels, in one pass: a loader may shuffle."""
    inputs, labels, size = [], [], 0
    for x, y in labelled(data, what):
        size += x.numel() * x.element_size()
        if size > LARGEST:
            raise RefusedError(f"the {what} data takes more than {LARGEST / 2**30:.0f} GiB; use fewer samples")
        inputs.append(x)
        labels.append(y)
    return torch.cat(inputs), torch.cat(labels)


def _trained(net: nn.Module, x: Tensor, y: Tensor, steps: int, source: torch.Generator) -> nn.Module:
    """Train a network with cross-entropy, the step size falling to zero."""
    net.train()
    optimizer = torch.optim.Adam(net.parameters(), PRIOR_RATE)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda t: 1 - t / steps)
    with torch.enable_grad(), torch.random.fork_rng(devices=[]):  # dropout draws from the global generator
        torch.manual_seed(source.initial_seed())
        for _ in range(steps):
            chosen = torch.randint(len(x), (BATCH,), generator=source)
            optimizer.zero_grad()
            scores = net(x[chosen])
            if not (isinstance(scores, Tensor) and scores.ndim == 2):
                raise RefusedError("in training mode the network does not return one row of class scores per sample")
            F.cross_entropy(scores, y[chosen]).backward()
            optimizer.step()
            schedule.step()
    if not all(bool(p.isfinite().all()) for p in net.parameters()):
        raise RefusedError("the prior diverged in training")
    return net


class _Noisy:
    """Weights ``w_0 + t (a + e^b z)`` of a captured network, BatchNorm folded.

    Args:
        captured: the prior's mean.
        names: of parameters; what else there is stays as it is.
    """

    def __init__(self, captured: Captured, names: list[str]) -> None:
        self.folded = FoldedNetwork(captured)
        self.means = {n: self.folded.fixed[n] for n in names if n in self.folded.weights}
        self.spread = {n: max(float(self.folded.weights[n].square().mean()) ** 0.5, 1e-3) for n in self.means}
        self.moved, self.log_noise = ({n: torch.zeros_like(t) for n, t in self.means.items()} for _ in range(2))

    @property
    def entries(self) -> int:
        """Return the number of weights with noise."""
        return sum(t.numel() for t in self.moved.values())

    @property
    def divergence(self) -> float:
        """Return the divergence from the prior, in float64."""
        pairs = ((self.moved[n].double(), self.log_noise[n].double()) for n in self.means)
        return math.fsum(float(relative_divergence(*pair)) for pair in pairs)

    def _scores(self, x: Tensor, source: torch.Generator) -> Tensor:
        """Return scores with newly drawn weights."""
        drawn = {}
        for n, mean in self.means.items():
            z = torch.randn(mean.shape, generator=source, dtype=mean.dtype)
            drawn[n] = mean + self.spread[n] * (self.moved[n] + self.log_noise[n].exp() * z)
        return self.folded.scores(x, drawn)

    def choose_level(self, x: Tensor, y: Tensor, source: torch.Generator) -> float:
        """Set the noise of the prior to the largest level that costs few errors on its own samples, and return it."""
        size, few = self.spread, torch.randint(len(x), (1024,), generator=source)
        level = allowed = 0.0
        for level in (0.0, *LEVELS):
            self.spread = {n: level * s for n, s in size.items()}
            with torch.no_grad():
                wrong = [(self._scores(x[i], source).argmax(1) != y[i]).double().mean() for i in few.split(128)]
            error = float(torch.stack(wrong).mean())
            if level == 0:
                allowed = error + COST
            elif error <= allowed:
                break
        return level

    def train(self, x: Tensor, y: Tensor, steps: int, source: torch.Generator) -> None:
        """Minimize the quadratic bound with a clipped cross-entropy."""
        m, scale = len(x), math.log(1 / CLIP)
        numbers = [*self.moved.values(), *self.log_noise.values()]
        for t in numbers:
            t.requires_grad_(True)
        optimizer = torch.optim.Adam(numbers, RATE_OF_NOISE)
        with torch.enable_grad():
            for _ in range(steps):
                chosen = torch.randint(m, (BATCH,), generator=source)
                logs = torch.log_softmax(self._scores(x[chosen], source), 1).gather(1, y[chosen][:, None])
                loss = -logs.clamp_min(-scale).mean() / scale
                kl = torch.stack([relative_divergence(self.moved[n], self.log_noise[n]) for n in self.means]).sum()
                q = (kl + math.log(2 * math.sqrt(m) / 0.025)) / (2 * m)
                optimizer.zero_grad()
                ((loss + q).sqrt() + q.sqrt()).square().backward()
                optimizer.step()
        for t in numbers:
            t.requires_grad_(False)

    def mean(self, x: Tensor, right: Callable[[Tensor], Tensor], draws: int, source: torch.Generator) -> float:
        """Return the mean share of random samples, over draws of the weights, whose class is not the right one."""
        shares = []
        with torch.no_grad():
            for _ in range(draws):
                i = torch.randint(len(x), (EACH,), generator=source)
                shares.append(float((self._scores(x[i], source).argmax(1) != right(i)).double().mean()))
        return math.fsum(shares) / draws
