"""Tensors over a root of their own quadratic form, in other spellings than the usual ones."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from networks import Lambda, captured_of, jacobian_norm, points, program_of, seeded, upper_of
from normscope.operators.program import ProgramBuilder
from normscope.operators.quadratic_form import RootOfForm, compact, find_root_quotient

Function = Callable[[Lambda, Tensor], Tensor]


def _two_means(x: Tensor) -> Tensor:
    return (x * x).mean(-1, keepdim=True) - x.mean(-1, keepdim=True) ** 2


def _fused(s: Lambda, x: Tensor) -> Tensor:
    scale = (x.var(-1, keepdim=True, unbiased=False) + 1e-2).rsqrt()
    return x * scale - x.mean(-1, keepdim=True) * scale


SPELLINGS: dict[str, tuple[Function, tuple[int, ...], str]] = {
    "variance from two means": (
        lambda s, x: (x - x.mean(-1, keepdim=True)) / (_two_means(x) + 1e-2).sqrt(), (6,), "layer_norm"),
    "scale and shift fused": (_fused, (6,), "layer_norm"),
    "the gain inside": (
        lambda s, x: x * (s.g * (x.square().mean(-1, keepdim=True) + 1e-2).rsqrt()), (6,), "rms_norm"),
    "twice the square": (lambda s, x: x / (2 * x.square().sum(-1, keepdim=True) + 1e-2).sqrt(), (6,), "l2_norm"),
    "fused over space": (
        lambda s, x: (x - x.mean((2, 3), keepdim=True)) * ((x.square().mean((2, 3), keepdim=True)
                      - x.mean((2, 3), keepdim=True).square() + 1e-2).rsqrt() * s.w), (3, 2, 2), "instance_norm"),
    "kept above a number": (
        lambda s, x: x * (s.g / x.square().mean(-1, keepdim=True).clamp(min=1e-2).sqrt()), (6,), "rms_norm"),
}  # fmt: skip


def _model(function: Function) -> nn.Module:
    parameters = {"g": nn.Parameter(torch.ones(6)), "w": nn.Parameter(torch.ones(1, 3, 1, 1))}
    return seeded(Lambda(function, **parameters))


@pytest.mark.parametrize("name", SPELLINGS)
def test_it_is_the_normalizer_it_computes(name: str) -> None:
    """With a bound that holds and is attained near zero."""
    function, shape, kind = SPELLINGS[name]
    model = _model(function)
    program = program_of(model, points(2, *shape))
    assert [s.kind for s in program.sites] == [kind]
    upper = upper_of(program)
    tiny = jacobian_norm(model, points(1, *shape) * 1e-9)
    assert tiny <= upper * (1 + 1e-9)
    assert tiny >= upper * 0.999
    for size in (0.05, 0.3, 5.0):
        assert jacobian_norm(model, points(1, *shape, seed=2) * size) <= upper


OTHERS: dict[str, Function] = {
    "a step beside it": lambda s, x: (x + 1e-12 * x.floor()) / (x.square().mean(-1, keepdim=True) + 0.1).sqrt(),
    "something else far out": lambda s, x: (
        (x + torch.where(x > 1e6, x, 0.0)) / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()),
    "cut off far out": lambda s, x: x.clamp(max=1e7) * (x.square().mean(-1, keepdim=True) + 0.1).rsqrt() * 1.0,
    "a spread cut off": lambda s, x: x / (x.square().mean(-1, keepdim=True).clamp(0.1, 1e9)).sqrt(),
    "a stabilizer per entry": lambda s, x: x / (x.square().mean(-1, keepdim=True) + s.g.square() + 0.1).sqrt(),
    "a fourth power": lambda s, x: x / (x.pow(4).mean(-1, keepdim=True) + 0.1).sqrt(),
    "a product of two": lambda s, x: x / (x.square().mean(-1, keepdim=True) * x.mean(-1, keepdim=True) + 9.0).sqrt(),
    "a weighted mean": lambda s, x: x / ((s.g * x.square()).abs().mean(-1, keepdim=True) + 0.1).sqrt(),
    "another tensor": lambda s, x: torch.sin(x) / (x.square().mean(-1, keepdim=True) + 0.1).sqrt(),
    "centred over a square": (
        lambda s, x: (x - x.mean(-1, keepdim=True)) / (x.square().mean(-1, keepdim=True) + 0.1).sqrt()),
}  # fmt: skip


@pytest.mark.parametrize("name", OTHERS)
def test_nothing_else_is(name: str) -> None:
    """What is no quotient by a quadratic form of equal weights has no such form, or is not named a division."""
    program = program_of(_model(OTHERS[name]), points(2, 6))
    assert not [s for s in program.sites if s.kind in ("layer_norm", "rms_norm", "l2_norm", "crms_norm")]
    model = _model(OTHERS[name])
    upper = upper_of(program)
    for size in (1e-6, 0.1, 1.0, 10.0):
        assert jacobian_norm(model, points(1, 6, seed=1) * size) <= upper


def test_a_form_has_its_numbers() -> None:
    """Factors, stabilizer, gain and shift."""
    gain, shift = points(6), points(6, seed=1)

    def function(s: Lambda, x: Tensor) -> Tensor:
        return (
            x * (s.g / (3 * x.square().sum(-1, keepdim=True) + 0.5 * x.sum(-1, keepdim=True) ** 2 + 2.0).sqrt()) + s.b
        )

    captured = captured_of(Lambda(function, g=nn.Parameter(gain), b=nn.Parameter(shift)), points(2, 6))
    walk = ProgramBuilder(captured.graph, captured.tensors, captured.at_batch(1))
    walk.found = set()
    walk.run()
    walk.found.clear()
    last = captured.graph[captured.graph.nodes[-1].args[0].name]
    quotient = find_root_quotient(last, walk.around)
    assert quotient is not None
    form = quotient.form
    assert (form.squares, form.total, form.least_eps, form.size) == pytest.approx((3.0, 0.5, 2.0, 6))
    assert not quotient.centered
    assert torch.allclose(quotient.gain.flatten(), gain)
    assert torch.allclose(quotient.shift.flatten(), shift)


def test_what_is_constant_is_kept_once() -> None:
    """Along each axis."""
    assert compact(torch.ones(2, 3)).shape == (1, 1)
    assert compact(torch.arange(3.0).expand(2, 3)).shape == (1, 3)


N = 6


class _Function(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


def _masked(x: Tensor) -> Tensor:
    """Return the deviation as it is computed where some entries may be missing, and none is."""
    seen = torch.ones_like(x)
    count = seen.sum(1, keepdim=True).clamp_min(1.0)
    mean = (x * seen).sum(1, keepdim=True) / count
    return torch.sqrt((((x - mean) * seen) ** 2).sum(1) / count.squeeze(1) + 1e-5)


#: The function, and the norm of its derivative far from zero: the largest there is.
ROOTS: dict[str, tuple[Callable[[Tensor], Tensor], float]] = {
    "variance": (lambda x: torch.sqrt(x.var(1, unbiased=False) + 1e-5), 1 / math.sqrt(N)),
    "unbiased variance": (lambda x: x.var(1).sqrt(), 1 / math.sqrt(N - 1)),
    "mean square": (lambda x: (x.pow(2).mean(1) + 1e-5).sqrt(), 1 / math.sqrt(N)),
    "sum of squares": (lambda x: ((x * x).sum(1, keepdim=True) + 1e-8) ** 0.5, 1.0),
    "difference of moments": (
        lambda x: ((x**2).mean(1) - x.mean(1) ** 2).clamp(min=1e-6).sqrt(), 1 / math.sqrt(N)
    ),
    "squares and their sum": (
        lambda x: torch.sqrt(x.square().sum(1) + 2 * x.sum(1).square() + 1e-3), math.sqrt(1 + 2 * N)
    ),
    "missing entries": (_masked, 1 / math.sqrt(N)),
}  # fmt: skip
#: Square roots that have no finite constant on all inputs.
NO_ROOTS: dict[str, Callable[[Tensor], Tensor]] = {
    "sum of absolute values": lambda x: torch.sqrt(x.abs().sum(1)),
    "fourth powers": lambda x: torch.sqrt((x**4).sum(1) + 1e-5),
    "a product of neighbours": lambda x: torch.sqrt((x * x.roll(1, 1)).sum(1).square() + 1e-5),
}


@pytest.mark.parametrize("name", ROOTS)
def test_the_constant_is_that_of_a_seminorm(name: str) -> None:
    """It is the largest derivative, which random inputs come near and none exceeds."""
    function, truth = ROOTS[name]
    program = program_of(_Function(function), points(2, N))
    assert any(isinstance(atom.atom, RootOfForm) for atom in program.atoms)
    upper = upper_of(program)
    assert upper == pytest.approx(truth, rel=1e-6)
    for scale in (1e-3, 1.0, 1e3):
        for x in scale * torch.randn(20, N, dtype=torch.float64, generator=torch.Generator().manual_seed(0)):
            slope = torch.autograd.functional.jacobian(lambda z: function(z[None]).flatten(), x)
            assert float(slope.norm()) <= upper
    along = 1e3 * (torch.ones(N) if name == "squares and their sum" else torch.arange(N) - (N - 1) / 2).double()
    attained = torch.autograd.functional.jacobian(lambda z: function(z[None]).flatten(), along).norm()
    assert float(attained) == pytest.approx(truth, rel=1e-6)


@pytest.mark.parametrize("name", NO_ROOTS)
def test_other_roots_stay_what_they_are(name: str) -> None:
    """What is no form has no constant on all inputs."""
    program = program_of(_Function(NO_ROOTS[name]), points(2, N))
    assert not any(isinstance(atom.atom, RootOfForm) for atom in program.atoms)
    assert upper_of(program) == math.inf
