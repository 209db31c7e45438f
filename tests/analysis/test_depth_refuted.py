"""Every certified number of a result against the modules themselves: rows and curves, place by place.

A place of a curve, or a row of a normalizer, is named after a module: its truth is the Jacobian, in float64, of the map
from the network's input, or from the module's own, to what the module really gives.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from networks import points, seeded
from normscope import analyze
from normscope.core.result import Result
from normscope.zoo.catalogue import build
from rotation import todays

X = points(6, 5, 8).float()


class Normalizer(nn.Module):
    """A normalizer written out of elementary operations, with its scale."""

    def __init__(self, function: Callable[[Tensor, Tensor], Tensor], gamma: Tensor) -> None:
        super().__init__()
        self.function, self.weight = function, nn.Parameter(gamma)

    def forward(self, x: Tensor) -> Tensor:
        """Normalize."""
        return self.function(x, self.weight)


def _root(x: Tensor, eps: float = 1e-6) -> Tensor:
    return torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)


def _centred(x: Tensor) -> Tensor:
    return x - x.mean(-1, keepdim=True)


FORMS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "scale last": lambda x, g: x * _root(x) * g,
    "scale first": lambda x, g: g * (x * _root(x)),
    "scale and cast": lambda x, g: g * (x.float() * _root(x.float())).to(x.dtype),
    "one plus scale": lambda x, g: (x * _root(x)) * (1.0 + g),
    "a number, then the scale": lambda x, g: nn.functional.normalize(x, dim=-1) * 8**0.5 * g,
    "the scale, then a number": lambda x, g: x * _root(x) * g * 3.0,
    "divided by a number": lambda x, g: g * (x * _root(x)) / 0.25,
    "divided by the scale": lambda x, g: x * _root(x) / g,
    "scale and shift": lambda x, g: x * _root(x) * g + g.flip(0),
    "centred": lambda x, g: _centred(x) / torch.sqrt(_centred(x).pow(2).mean(-1, keepdim=True) + 1e-5) * g + g,
    "scale of one number": lambda x, g: nn.functional.normalize(x, dim=-1) * g[0],
    "negated": lambda x, g: -(x * _root(x)) * g,
    "squared scale": lambda x, g: x * _root(x) * g * g,
    "a clone between": lambda x, g: (x * _root(x)).clone() * g,
}


def _written(form: str) -> nn.Module:
    gamma = torch.linspace(-1.5, 3.0, 8)
    return seeded(nn.Sequential(nn.Linear(8, 8), Normalizer(FORMS[form], gamma), nn.GELU(), nn.Linear(8, 3)))


def _randomised(model: nn.Module) -> nn.Module:
    """Give every scale and shift random numbers."""
    generator = torch.Generator().manual_seed(5)
    for name, p in model.named_parameters():
        if p.ndim == 1:
            p.data = torch.randn(p.shape, generator=generator) + (0.0 if name.endswith("bias") else 1.0)
    return model.eval()


def _transformer(name: str) -> nn.Module:
    """Return the body of a small transformer that takes embeddings."""
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = getattr(transformers, f"{name}Config")(**sizes, num_hidden_layers=1, vocab_size=11, head_dim=4)
    config._attn_implementation = "eager"
    config.use_cache = False
    torch.manual_seed(0)
    body = getattr(transformers, f"{name}Model")(config)
    body.embed_tokens = nn.Identity()  # embeddings are given
    return OfEmbeddings(_randomised(body))


def _t5() -> nn.Module:
    transformers = pytest.importorskip("transformers")
    config = transformers.T5Config(d_model=8, d_kv=4, d_ff=12, num_layers=1, num_heads=2, vocab_size=11)
    torch.manual_seed(0)
    body = transformers.T5EncoderModel(config).encoder
    body.embed_tokens = nn.Identity()
    return OfEmbeddings(_randomised(body))


class OfEmbeddings(nn.Module):
    """A transformer as a function of its embeddings."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: Tensor) -> Tensor:
        """Return the last hidden state."""
        return self.body(inputs_embeds=x).last_hidden_state  # type: ignore[no-any-return]


NETWORKS: dict[str, Callable[[], tuple[nn.Module, Tensor]]] = {
    **{form: lambda form=form: (_written(form), X) for form in FORMS},  # type: ignore[misc]
    **{name: lambda name=name: (_transformer(name), X) for name in ("Llama", "Gemma", "Qwen3")},  # type: ignore[misc]
    "T5": lambda: (_t5(), X),
    "BatchNorm": lambda: (
        _randomised(build("relu10", norm="bn", width=8, depth=3, in_features=8)),
        points(6, 8).float(),
    ),
    "GroupNorm": lambda: (_randomised(build("cnn", norm="gn", width=4)), points(4, 3, 32, 32).float()[:, :, :8, :8]),
}


class Recorded:
    """What each module takes and gives in one run, as functions to differentiate."""

    def __init__(self, model: nn.Module) -> None:
        self.model = copy.deepcopy(model).double()
        self.modules = dict(self.model.named_modules())

    def prefix(self, name: str) -> Callable[[Tensor], Tensor]:
        """Return the map from the network's input to what a module gives."""

        def function(x: Tensor) -> Tensor:
            kept: list[Tensor] = []
            handle = self.modules[name].register_forward_hook(lambda _m, _i, out: kept.append(out))
            try:
                self.model(x)
            finally:
                handle.remove()
            return kept[0]

        return function

    def met(self, name: str, x: Tensor) -> Tensor:
        """Return what a module takes."""
        kept: list[Tensor] = []
        handle = self.modules[name].register_forward_pre_hook(lambda _m, args: kept.append(args[0]))
        self.model(x)
        handle.remove()
        return kept[0].detach()


def _norm(function: Callable[[Tensor], Tensor], x: Tensor) -> float:
    jacobian: Any = torch.autograd.functional.jacobian(function, x)
    return float(torch.linalg.matrix_norm(jacobian.reshape(-1, x.numel()), ord=2))


def _probes(x: Tensor) -> list[Tensor]:
    """Return inputs like the data, small ones, large ones and single spikes."""
    spike = torch.zeros_like(x)
    spike.flatten()[0] = 1.0
    return [x, 1e-3 * x, 1e-5 * x, 30.0 * x, spike, 1e-4 * spike]


@pytest.fixture(scope="module", params=todays(NETWORKS, 8))
def case(request: pytest.FixtureRequest) -> tuple[Result, nn.Module, Tensor]:
    """Return a network, its data and its result."""
    model, data = NETWORKS[request.param]()
    return analyze(model.eval(), data, points=1, ascent=0), model, data


@pytest.mark.turns(6)
def test_curves_along_depth(case: tuple[Result, nn.Module, Tensor]) -> None:
    """The bound on all inputs, at every place that is a module called once."""
    result, model, data = case
    recorded = Recorded(model)
    checked = 0
    for place, name in enumerate(result.depth.names):
        if name not in recorded.modules or name == "":
            continue
        upper = result.depth.value("global", place)
        assert upper is not None
        for x in _probes(data[:1].double()):
            assert _norm(recorded.prefix(name), x) <= upper.value * (1 + 1e-9), name
        checked += 1
    assert checked >= 3


def test_rows_of_normalizers(case: tuple[Result, nn.Module, Tensor]) -> None:
    """The constant of a normalizer that is a module bounds that module."""
    result, model, data = case
    recorded = Recorded(model)
    rows = [n for n in result.normalizers if n.name in recorded.modules]
    assert rows
    for n in rows:
        x = recorded.met(n.name, data[:1].double())
        for probe in _probes(x):
            assert _norm(recorded.modules[n.name], probe) <= n.proved.value * (1 + 1e-9), n.name
