"""Llama-like decoder against transformers with the same weights."""

from __future__ import annotations

import pytest
import torch
import transformers

from normscope.zoo.networks.llama import LlamaLike, RMSNorm, rotate


def test_logits_equal_those_of_transformers() -> None:
    """The public implementation's state dict fits key by key and gives the same numbers."""
    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, rms_norm_eps=1e-6, rope_theta=10000.0, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    reference = transformers.LlamaForCausalLM(config).double().eval()
    own = LlamaLike(vocabulary=64, width=32, layers=2, hidden=48, heads=4, key_heads=2).double().eval()
    own.load_state_dict(reference.state_dict())
    ids = torch.randint(64, (2, 10), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        # The reference computes rotation angles in float32.
        torch.testing.assert_close(own(ids), reference(ids).logits, atol=1e-5, rtol=0)


def test_rotation_is_by_complex_phases() -> None:
    """Pairs of features are multiplied by exp(i t theta)."""
    x = torch.randn(1, 2, 7, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    phases = torch.arange(7.0)[:, None].double() * 10000.0 ** (-torch.arange(0, 6, 2) / 6).double()
    turned = torch.complex(x[..., :3], x[..., 3:]) * torch.polar(torch.ones_like(phases), phases)
    torch.testing.assert_close(rotate(x), torch.cat([turned.real, turned.imag], dim=-1), atol=1e-6, rtol=0)


def test_rms_norm_equals_the_librarys() -> None:
    """In float64 and, through float32, in bfloat16."""
    x = torch.randn(4, 9, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    torch.testing.assert_close(RMSNorm(9).double()(x), torch.nn.functional.rms_norm(x, (9,), eps=1e-6))
    assert RMSNorm(9).bfloat16()(x.bfloat16()).dtype == torch.bfloat16


def test_heads_must_tile() -> None:
    """Width over heads, heads over key heads."""
    with pytest.raises(ValueError, match="key_heads=3"):
        LlamaLike(key_heads=3)
