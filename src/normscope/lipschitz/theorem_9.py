"""Theorem 9 of than2025 and its corollaries, as printed: products over layers and normalizers."""

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
    return _printed(weights, normalizers, "Theorem 9")


@statement("than2025", "Lemma 5", holds="1-Lipschitz activations, plain chain")
def lemma_5(weights: Iterable[Value]) -> Value:
    """Return ``P_w = prod ||W_k||``, the product of the spectral norms of the linear layers.

    >>> round(lemma_5([Value.of(2.0, Kind.CERTIFIED), Value.of(3.0, Kind.CERTIFIED)]).value, 12)
    6.0
    """
    return _printed(weights, (), "Lemma 5")


@statement("than2025", "Corollary 10", holds="printed; BatchNorm with fixed statistics, plain chain")
def corollary_10(weights: Iterable[Value], inverse_stds: Iterable[Value]) -> tuple[Value, Value]:
    """Return both forms for BatchNorm: ``P_w prod ||1/sigma_k||`` and ``P_w sigma^-K``.

    There ``1/sigma = max_k ||1/sigma_k||``.

    Args:
        weights: spectral norms of the linear layers.
        inverse_stds: ``||1/sigma_k||_2`` of each BatchNorm (Lemma 1).

    >>> two = [Value.of(0.5, Kind.PRINTED), Value.of(0.25, Kind.PRINTED)]
    >>> [round(v.value, 12) for v in corollary_10([Value.of(8.0, Kind.CERTIFIED)], two)]
    [1.0, 2.0]
    """
    norms, factors = list(weights), list(inverse_stds)
    power = sorted(factors, key=lambda v: v.log)[-1:] * len(factors)
    return _printed(norms, factors, "Corollary 10 (1)"), _printed(norms, power, "Corollary 10 (2)")


@statement("than2025", "Corollary 11", holds="printed; on all inputs each factor is 1/sqrt(eps)")
def corollary_11(weights: Iterable[Value], inverse_stds: Iterable[Value]) -> Value:
    """Return the form for LayerNorm, ``P_w prod 1/sigma_k``.

    Args:
        weights: spectral norms of the linear layers.
        inverse_stds: ``1/sigma_k`` of each LayerNorm (Lemma 2): at the least std seen, or ``1/sqrt(eps)``.

    >>> round(corollary_11([Value.of(8.0, Kind.CERTIFIED)], [Value.of(0.5, Kind.PRINTED)]).value, 12)
    4.0
    """
    return _printed(weights, inverse_stds, "Corollary 11")


def _printed(weights: Iterable[Value], factors: Iterable[Value], number: str) -> Value:
    whole = product([Value(0.0, Kind.PRINTED), *weights, *factors])
    return Value(whole.log, Kind.PRINTED, whole.domain, whole.mode, f"than2025 {number}", whole.assumptions)
