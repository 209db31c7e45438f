"""The rules of all operations; importing this package registers them."""

from normscope.operators.rules import (
    activation,
    arithmetic,
    attention,
    convolution,
    einsum,
    indexing,
    joining,
    layout,
    matrix,
    normalization,
    pooling,
    recurrent,
    reduction,
)

__all__ = [
    "activation",
    "arithmetic",
    "attention",
    "convolution",
    "einsum",
    "indexing",
    "joining",
    "layout",
    "matrix",
    "normalization",
    "pooling",
    "recurrent",
    "reduction",
]
