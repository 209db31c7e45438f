"""Vision transformer: published size, attention against the library's."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from normscope.zoo.networks.vit import Attention, PatchEmbedding, VisionTransformer


def test_published_size() -> None:
    """ViT-Ti/16 with 1000 classes."""
    with torch.device("meta"):
        assert sum(p.numel() for p in VisionTransformer().parameters()) == 5_717_416


@pytest.mark.parametrize("causal", [False, True])
def test_attention_equals_the_librarys(causal: bool) -> None:
    """nn.MultiheadAttention with the same weights gives the same tokens."""
    torch.manual_seed(0)
    own = Attention(12, 3, causal).double()
    reference = nn.MultiheadAttention(12, 3, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        reference.in_proj_weight.copy_(own.qkv.weight)
        reference.in_proj_bias.copy_(own.qkv.bias)
        reference.out_proj.weight.copy_(own.output.weight)
        reference.out_proj.bias.copy_(own.output.bias)
    x = torch.randn(2, 5, 12, dtype=torch.float64)
    mask = torch.ones(5, 5, dtype=torch.bool).triu(1) if causal else None
    torch.testing.assert_close(own(x), reference(x, x, x, attn_mask=mask, need_weights=False)[0])


def test_patches_can_be_permuted_if_positions_are() -> None:
    """Without positions the class token does not see the order of patches."""
    torch.manual_seed(0)
    model = VisionTransformer(image_size=8, patch=4, width=12, depth=2, classes=3).double().eval()
    x = torch.randn(1, 3, 8, 8, dtype=torch.float64)
    swapped = torch.cat([x[..., 4:], x[..., :4]], dim=-1)
    assert (model(x) - model(swapped)).abs().max() > 1e-6
    nn.init.zeros_(model.positions)
    torch.testing.assert_close(model(x), model(swapped))


def test_sizes_must_fit() -> None:
    """Patches tile the image, heads tile the width."""
    with pytest.raises(ValueError, match="multiple of patch"):
        VisionTransformer(image_size=30)
    with pytest.raises(ValueError, match="multiple of heads"):
        VisionTransformer(width=10)


def test_each_token_is_the_same_linear_map_of_its_patch() -> None:
    """Row by row, against cutting the image by hand."""
    torch.manual_seed(0)
    embedding = PatchEmbedding(6, 2, 5).double()
    image = torch.randn(2, 3, 6, 6, dtype=torch.float64)
    tokens = embedding(image)
    assert tokens.shape == (2, embedding.tokens, 5) == (2, 9, 5)
    for row in range(3):
        for column in range(3):
            patch = image[:, :, 2 * row : 2 * row + 2, 2 * column : 2 * column + 2].flatten(1)
            expected = patch @ embedding.weight.flatten(1).T + embedding.bias
            torch.testing.assert_close(tokens[:, 3 * row + column], expected)


def test_patches_must_tile_the_image() -> None:
    """30 is no multiple of 16."""
    with pytest.raises(ValueError, match="Expected image_size to be a multiple of patch, got image_size=30, patch=16"):
        PatchEmbedding(30, 16, 8)


def test_names_are_those_of_a_convolution() -> None:
    """Checkpoints keep their keys."""
    assert set(PatchEmbedding(8, 4, 5).state_dict()) == {"weight", "bias"}
