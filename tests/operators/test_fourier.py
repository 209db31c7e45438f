"""Fourier transforms, and what is linear between them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from fractions import Fraction

import pytest
import torch
from torch import Tensor, fft, nn

import normscope
from networks import Lambda, jacobian_norm, points
from normscope.operators.fourier import fourier_norm
from normscope.testing.upper_bound import check_upper_bound
from operators.refute import Case, linear, nonlinear, without_constant

GENERATOR = torch.Generator().manual_seed(0)
SPECTRUM = torch.randn(5, dtype=torch.complex128, generator=GENERATOR)
MIXING = torch.randn(2, 2, 3, dtype=torch.complex128, generator=GENERATOR)


def _modes(x: Tensor) -> Tensor:
    """Return a Fourier layer: the lowest modes of each channel mixed by complex matrices, the others left out."""
    modes = torch.einsum("bim,iom->bom", fft.rfft(x)[..., :3], MIXING)
    kept = torch.zeros(*x.shape[:-1], 5, dtype=torch.complex128)
    kept[..., :3] = modes
    return fft.irfft(kept, n=8)


def _ends(x: Tensor) -> Tensor:
    """Return both ends of a spectrum, written into it one after the other."""
    z = fft.fft(x)
    kept = torch.zeros_like(z)
    kept[..., :2] = 2.0 * z[..., :2]
    kept[..., -2:] = z[..., -2:] * 1j
    return fft.ifft(kept).real


LINEAR: dict[str, Case] = {
    "the real part": (lambda x: fft.fft(x).real, (8,), None),
    "both parts": (lambda x: torch.view_as_real(fft.fft(x)), (8,), math.sqrt(8)),
    "half of a spectrum": (lambda x: torch.view_as_real(fft.rfft(x)), (8,), math.sqrt(8)),
    "unitary": (lambda x: torch.view_as_real(fft.fft2(x, norm="ortho")), (4, 4), 1.0),
    "there and back": (lambda x: fft.irfft(fft.rfft(x), n=7), (7,), 1.0),
    "filtered": (lambda x: fft.irfft(fft.rfft(x) * SPECTRUM, n=8), (8,), None),
    "filtered in the plane": (lambda x: fft.irfft2(fft.rfft2(x) * SPECTRUM[:3], s=(4, 4)), (4, 4), None),
    "a Fourier layer": (_modes, (2, 8), None),
    "both ends": (_ends, (6,), None),
    "padded and cut": (lambda x: fft.irfft(fft.rfft(x, n=12)[..., :4], n=6), (8,), None),
    "several axes": (lambda x: fft.fftn(x, dim=(1, 2)).imag, (3, 4, 2), None),
    "mixed tokens": (lambda x: fft.fft(fft.fft(x, dim=-1), dim=-2).real, (3, 4), None),
    "a sum of spectra": (lambda x: torch.view_as_real(fft.fft(x) - 3.0 * fft.ifft(x) + SPECTRUM), (5,), None),
    "of made up numbers": (lambda x: fft.ifft(torch.complex(x, 2.0 * x.flip(-1))).real, (6,), None),
    "shifted": (lambda x: fft.ifft(fft.fftshift(fft.fft(x), dim=-1)).real, (6,), None),
    "Hermitian": (lambda x: fft.hfft(fft.ihfft(x), n=6), (6,), 1.0),
}


@pytest.mark.turns(3)
@pytest.mark.parametrize("name", LINEAR)
def test_transforms_are_linear(name: str) -> None:
    """Exact on small maps."""
    linear(LINEAR[name])


def test_the_size_of_a_spectrum() -> None:
    """Its modulus moves as far as the spectrum does; its square has no constant on all inputs."""
    nonlinear((lambda x: fft.fft(x).abs(), (8,), math.sqrt(8)))
    without_constant(lambda x: fft.rfft(x).abs().square(), 8)


NAMES = ("fft", "ifft", "rfft", "irfft", "hfft", "ihfft")


@pytest.mark.parametrize(("name", "norm"), itertools.product(NAMES, ("backward", "forward", "ortho", None)))
def test_norms_of_transforms(name: str, norm: str | None) -> None:
    """Never below the largest singular value of the matrix in pairs, and attained but where a half is too short."""
    points = 6
    half = name in ("irfft", "hfft")
    is_complex = half or name in ("fft", "ifft")
    count = points // 2 + 1 if half else points

    def transform(x: Tensor) -> Tensor:
        z = torch.view_as_complex(x.reshape(count, 2)) if is_complex else x
        out = getattr(fft, name)(z, n=points, norm=norm)
        return (torch.view_as_real(out.resolve_conj()) if out.is_complex() else out).reshape(-1)

    start = torch.zeros(count * (2 if is_complex else 1), dtype=torch.float64)
    truth = float(torch.linalg.matrix_norm(torch.autograd.functional.jacobian(transform, start), 2))
    assert fourier_norm(f"fft_{name}", points, norm) == pytest.approx(truth, rel=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_norms_of_transforms_are_rounded_up(name: str) -> None:
    """Never below the root of ``N`` or of ``1/N``, twice that under the root for half a spectrum."""
    for count in range(1, 60):
        growing = Fraction(1, count) if name.startswith("i") else Fraction(count)
        for norm, square in (("backward", growing), ("forward", 1 / growing), ("ortho", Fraction(1))):
            exact = square * (2 if name in ("irfft", "hfft") else 1)
            assert Fraction(fourier_norm(f"fft_{name}", count, norm)) ** 2 >= exact


ANGLES = torch.tensor([0.3, 2.0, -1.0], dtype=torch.float64)


def _pairs(x: Tensor) -> Tensor:
    return torch.view_as_complex(x.reshape(*x.shape[:-1], -1, 2))


def _flat(z: Tensor) -> Tensor:
    return torch.view_as_real(z).flatten(-2)


FACTORS = {
    "turned": torch.polar(torch.ones(3).double(), ANGLES),
    "turned and scaled": torch.polar(torch.tensor([0.5, 3.0, 0.0]).double(), ANGLES),
    "one for all": torch.tensor(2.0 - 1.0j, dtype=torch.complex128),
    "real": torch.tensor([1.0, -4.0, 2.0], dtype=torch.float64),
}


@pytest.mark.parametrize("name", FACTORS)
def test_a_product_with_constants_has_their_largest_modulus(name: str) -> None:
    """From both sides, and as the Jacobian has it."""
    model = Lambda(lambda s, x: _flat(s.c * _pairs(x)), c=FACTORS[name])
    found = normscope.analyze(model, points(2, 6)).end_to_end
    truth = jacobian_norm(model, points(1, 6))
    assert truth == pytest.approx(float(FACTORS[name].abs().max()), rel=1e-12)
    assert found["global"].value == pytest.approx(truth, rel=1e-9)  # type: ignore[union-attr]
    assert found["lower"].value == pytest.approx(truth, rel=1e-6)  # type: ignore[union-attr]


def test_a_turned_and_mapped_vector_keeps_its_norm() -> None:
    """Rotary positions behind a linear layer: the layer's norm, not a product of two."""
    linear = nn.Linear(6, 6, bias=False).double()
    model = Lambda(lambda s, x: _flat(_pairs(s.l(x)) * s.c), l=linear, c=FACTORS["turned"])
    found = normscope.analyze(model, points(2, 5, 6)).end_to_end["global"]
    assert found is not None
    assert found.value == pytest.approx(float(torch.linalg.matrix_norm(linear.weight.detach(), 2)), rel=1e-9)


def test_entries_of_turned_pairs_may_be_larger() -> None:
    """An entry of a turned pair is up to a root of two larger: a gate behind it must know."""
    eighth = torch.polar(torch.ones(3).double(), torch.full((3,), math.pi / 4).double())
    model = Lambda(lambda s, x: _flat(_pairs(torch.tanh(4 * x)) * s.c) * x.sin(), c=eighth)
    upper = normscope.analyze(model, points(2, 6)).end_to_end["global"]
    assert upper is not None
    largest = max(jacobian_norm(model, p[None]) for p in 3.0 * points(200, 6))
    checked = check_upper_bound(model, [points(4, 6)])
    assert checked.violations == []
    assert largest <= upper.value


@pytest.mark.parametrize(
    "function",
    [
        lambda x: _flat(_pairs(x) * _pairs(x)),
        lambda x: _pairs(x).angle(),
        lambda x: _flat(_pairs(x).exp()),
        lambda x: _flat(_pairs(x) / (2.0 + _pairs(x))),
    ],
)
def test_anything_else_is_not_understood(function: Callable[[Tensor], Tensor]) -> None:
    """And listed."""
    result = normscope.analyze(Lambda(lambda s, x: function(x), p=nn.Parameter(torch.zeros(1))), points(2, 6))
    assert result.end_to_end["global"].log == math.inf  # type: ignore[union-attr]
    assert result.coverage.opaque
