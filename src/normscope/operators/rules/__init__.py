"""The rules of all operations; importing this package registers them."""

from normscope.operators.rules import (
    activation,
    arithmetic,
    attention,
    convolution,
    layout,
    matrix,
    normalization,
    pooling,
    recurrent,
)

__all__ = [
    "activation",
    "arithmetic",
    "attention",
    "convolution",
    "layout",
    "matrix",
    "normalization",
    "pooling",
    "recurrent",
]
