"""Patches: each token is one linear map of one square of the image."""

from __future__ import annotations

import pytest
import torch

from normscope.zoo.networks.patches import PatchEmbedding


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
