"""eps, roots and the precision of the reduction."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from benchmarks.doctor.case import PreNormBlock, RMSNorm, Setup, case, named, sequences


class _Standardize(nn.Module):
    """A normalizer written out, with eps inside the root, outside, or nowhere."""

    def __init__(self, width: int, where: str) -> None:
        super().__init__()
        self.weight, self.bias, self.where = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width)), where

    def forward(self, x: Tensor) -> Tensor:
        """Subtract the mean, divide by the spread."""
        centred = x - x.mean(-1, keepdim=True)
        variance = centred.pow(2).mean(-1, keepdim=True)
        if self.where == "inside":
            spread = (variance + 1e-5).sqrt()
        else:
            spread = variance.sqrt() + (1e-5 if self.where == "outside" else 0.0)
        return self.weight * centred / spread + self.bias


def _written_out(where: str) -> nn.Module:
    return named(fc1=nn.Linear(16, 16), norm=_Standardize(16, where), act=nn.GELU(), fc2=nn.Linear(16, 2))


@case("keras-team/keras/issues/2960", "NS302 NS306", "norm")
def no_eps(bug: bool) -> Setup:
    """A standard deviation without eps: equal entries are divided by zero."""
    return Setup(_written_out("nowhere" if bug else "inside"), torch.randn(64, 16))


@case("richzhang/PerceptualSimilarity/issues/69", "NS306", "norm")
def eps_outside_the_root(bug: bool) -> Setup:
    """Eps is added after the root, whose gradient at zero is infinite."""
    return Setup(_written_out("outside" if bug else "inside"), torch.randn(64, 16))


@case("nomic-ai/gpt4all/pull/1946", "NS302", "norm1 norm2")
def eps_vanishes_in_half_precision(bug: bool) -> Setup:
    """eps=1e-12 was chosen for float32 and the model is run in float16."""
    model = PreNormBlock(16, lambda n: nn.LayerNorm(n, eps=1e-12 if bug else 1e-5))
    return Setup(model, options={"input_shape": (12, 16), "dtype": torch.float16})


@case("huggingface/transformers/pull/585", "NS302", "norm1 norm2")
def eps_tiny_in_single_precision(bug: bool) -> Setup:
    """eps=1e-12 in float32: nothing stands between nearly equal entries and a slope of a million."""
    model = PreNormBlock(16, lambda n: nn.LayerNorm(n, eps=1e-12 if bug else 1e-6))
    return Setup(model, options={"input_shape": (12, 16)})


def _stack(odd: float) -> nn.Module:
    blocks = [PreNormBlock(16, lambda n: nn.LayerNorm(n, eps=1e-6)) for _ in range(4)]
    blocks[2].norm1.eps = odd
    return named(blocks=nn.Sequential(*blocks), norm=nn.LayerNorm(16, eps=1e-6), head=nn.Linear(16, 4))


@case("LeelaChessZero/lc0/pull/1914", "NS304", "blocks.2.norm1")
def one_eps_unlike_the_others(bug: bool) -> Setup:
    """One layer kept the eps of another code path."""
    return Setup(_stack(1e-3 if bug else 1e-6), options={"input_shape": (12, 16)})


@case("huggingface/candle/pull/271", "NS304", "blocks.2.norm1")
def one_eps_of_another_release(bug: bool) -> Setup:
    """One layer has 1e-5 where the checkpoint was trained with 1e-6."""
    return Setup(_stack(1e-5 if bug else 1e-6), options={"input_shape": (12, 16)})


@case("pytorch/pytorch/pull/133085", "NS305", "norm")
def reduces_in_half_precision(bug: bool) -> Setup:
    """Squares are summed in float16 and overflow from 256 on."""
    model = named(fc1=nn.Linear(16, 16), norm=RMSNorm(16, 1e-5, upcast=not bug), act=nn.GELU(), fc2=nn.Linear(16, 2))
    return Setup(model.half(), torch.randn(64, 16).half())


@case("skyzh/tiny-llm/pull/18", "NS305", "norm")
def planned_half_precision(bug: bool) -> Setup:
    """The normalizer does not widen its input, and float16 is planned."""
    model = named(fc1=nn.Linear(16, 16), norm=RMSNorm(16, 1e-5, upcast=not bug), act=nn.GELU(), fc2=nn.Linear(16, 2))
    return Setup(model, torch.randn(64, 16), options={"dtype": torch.float16})


class _Unit(nn.Module):
    """Vectors of length one."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Divide by the length."""
        return nn.functional.normalize(x, dim=-1, eps=self.eps)


@case("huggingface/diffusers/pull/13316", "NS302 NS305", "norm")
def normalize_in_half_precision(bug: bool) -> Setup:
    """F.normalize has eps=1e-12, which is zero in float16: a zero vector gives NaN."""
    model = named(fc1=nn.Linear(16, 16), norm=_Unit(1e-12 if bug else 1e-4), fc2=nn.Linear(16, 2))
    return Setup(model.half(), sequences().half())
