"""Theorem 9 and its corollaries as printed: flat products over layers and normalizers."""

from __future__ import annotations

from collections.abc import Iterable

from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product


@statement("than2025", "Theorem 9", holds="printed; a bound only for a plain chain with 1-Lipschitz activations")
def theorem_9(weights: Iterable[Value], normalizers: Iterable[Value]) -> Value:
    """Return ``prod ||W_k|| prod ||NO_k||`` with the constants the paper prints for its normalizers.

    It ignores skip connections, attention and the slope of activations, and with ``||1/sigma||_2`` for BatchNorm it
    measures the parametrization: rescaling a weight that a normalizer follows changes single factors, not the network.

    Args:
        weights: spectral norms of the linear layers.
        normalizers: printed constants of the normalizers (Corollary 10 for BatchNorm, 11 for LayerNorm).

    >>> norms = [Value.of(2.0, Kind.CERTIFIED), Value.of(3.0, Kind.CERTIFIED)]
    >>> printed = theorem_9(norms, [Value.of(0.5, Kind.PRINTED)])
    >>> round(printed.value, 12), printed.kind.value
    (3.0, 'printed')
    """
    one = Value(0.0, Kind.PRINTED)
    whole = product([one, *weights, *normalizers])
    return Value(whole.log, Kind.PRINTED, whole.domain, whole.mode, "than2025 Theorem 9", whole.assumptions)


@statement("than2025", "Lemma 5", holds="1-Lipschitz activations, plain chain")
def lemma_5(weights: Iterable[Value]) -> Value:
    """Return ``P_w = prod ||W_k||``, the product of the spectral norms of the linear layers.

    >>> round(lemma_5([Value.of(2.0, Kind.CERTIFIED), Value.of(3.0, Kind.CERTIFIED)]).value, 12)
    6.0
    """
    whole = product(weights)
    return Value(whole.log, Kind.PRINTED, whole.domain, whole.mode, "than2025 Lemma 5", whole.assumptions)
