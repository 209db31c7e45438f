"""A layer of a chain as norm-based bounds see it: the norms of its matrix, with the bias as one more column."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from normscope.core.rounding import matrix_norm_sandwich


@dataclass(frozen=True)
class ChainLayer:
    """Natural logarithms of the norms of a layer's matrix ``A``.

    Attributes:
        spectral: of an upper bound of ``||A||_2``.
        frobenius: of ``||A||_F``.
        two_one: of ``||A^T||_{2,1}``, the sum of the Euclidean norms of the rows.
        row: of the largest Euclidean norm of a row.
        width: rows.
        fan_in: columns.
        name: of the layer.
    """

    spectral: float
    frobenius: float
    two_one: float
    row: float
    width: int
    fan_in: int
    name: str = ""

    @classmethod
    def of(cls, matrix: Tensor, name: str = "") -> ChainLayer:
        """Return the norms of a dense matrix.

        >>> layer = ChainLayer.of(torch.eye(4))
        >>> round(layer.frobenius, 6), round(layer.two_one, 6), layer.width
        (0.693147, 1.386294, 4)
        """
        rows = torch.linalg.vector_norm(matrix.double(), dim=1)
        logs = torch.stack([torch.linalg.vector_norm(rows), rows.sum(), rows.max()]).log() + 1e-12
        frobenius, two_one, row = logs.tolist()
        spectral = math.log(matrix_norm_sandwich(matrix)[1])
        width, fan_in = matrix.shape
        return cls(spectral, frobenius, two_one, row, width, fan_in, name)
