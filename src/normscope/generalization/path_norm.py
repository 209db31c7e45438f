"""The factor of the path-norm bound of Gonon et al. in front of the path norm."""

from __future__ import annotations

import math

from normscope.core.errors import InputError
from normscope.core.statement import statement
from normscope.core.value import Kind, Value


@statement(
    "gonon2024", "Theorem 3.1", holds="printed; constants as in the authors' code, since the text was not available"
)
def path_norm_bound(
    log_path_norm: float,
    *,
    depth: int,
    kernel: int,
    inputs: int,
    outputs: int,
    largest: float,
    samples: int,
    poolings: int = 0,
    lipschitz: float = 1.0,
) -> Value:
    r"""Return ``(4 B/sqrt(n)) sqrt(D ln((3 + 2 P) K) + ln(((3 + 2 P)/(1 + P)) (d_in + 1) d_out))`` times the path norm.

    Args:
        log_path_norm: natural logarithm of the L1 path norm, normalizers folded.
        depth: ``D``.
        kernel: ``K``, most entries of a kernel in one channel.
        inputs: ``d_in``.
        outputs: ``d_out``.
        largest: ``B``, largest entry of an input.
        samples: ``n``.
        poolings: ``P``, kinds of max-pooling.
        lipschitz: of the loss in the scores.

    >>> kinds = dict(depth=18, kernel=9, inputs=3 * 224**2, outputs=1000, poolings=1)
    >>> round(path_norm_bound(0.0, **kinds, largest=2.64, samples=1_281_167).value, 3)
    0.088
    """
    if min(depth, kernel, inputs, outputs, samples) < 1 or largest < 0:
        raise InputError(f"Expected positive sizes, got {(depth, kernel, inputs, outputs, samples)}.")
    choices = 3 + 2 * poolings
    inside = depth * math.log(choices * kernel) + math.log(choices / (1 + poolings) * (inputs + 1) * outputs)
    factor = 4 * largest * lipschitz * math.sqrt(inside / samples)
    log = log_path_norm + math.log(factor) if factor > 0 else -math.inf
    assumed = ("constants from the authors' code", "no union bound over the path norm")
    return Value(log, Kind.PRINTED, statement="gonon2024 Theorem 3.1", assumptions=assumed)
