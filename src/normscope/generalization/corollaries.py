"""Corollaries 21 and 22 of than2025: Theorem 20 with jumps, and with a product over layers for local constants."""

from __future__ import annotations

from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product, total


@statement("than2025", "Corollary 22", holds="printed; a bound only for a plain chain and cells fixed before the data")
def corollary_22(loss_constant: Value, network: Value, distance: Value, g: Value) -> Value:
    r"""Return ``omega + g`` with ``omega = L_f ||h|| sum_i (m_i/m) lambda_i``.

    ``||h||`` is ``P_w sigma^-K`` for BatchNorm, ``P_w prod 1/sigma_k`` for LayerNorm and ``P_w`` without normalizer, as
    Corollaries 10 and 11 print them; or the product of folded norms ``prod ||diag(gamma/sigma) W||``, which does not
    move when a weight before a normalizer is rescaled.

    Args:
        loss_constant: ``L_f``, of the loss in the scores.
        network: ``||h||``.
        distance: ``sum_i (m_i/m) lambda_i``, or with diameters in place of ``lambda_i``.
        g: the statistical term.

    >>> one = Value.of(2.0, Kind.CERTIFIED)
    >>> round(corollary_22(one, one, one, one).value, 9)
    10.0
    """
    whole = total((product((loss_constant, network, distance)), g))
    return Value(whole.log, Kind.PRINTED, statement="than2025 Corollary 22", assumptions=g.assumptions)


@statement("than2025", "Corollary 21", holds="printed; cells and discontinuities fixed before the data")
def corollary_21(theorem_20: Value) -> Value:
    """Return the number of Theorem 20, said of a loss that jumps on a set of probability zero.

    For a trained network that set is not fixed before the data, and the statement is false then: cells drawn around
    the samples break it. A network that is Lipschitz has no jumps, and nothing is gained.

    Args:
        theorem_20: the right side of Theorem 20.

    >>> corollary_21(Value.of(2.0, Kind.PRINTED)).statement
    'than2025 Corollary 21'
    """
    return Value(theorem_20.log, Kind.PRINTED, statement="than2025 Corollary 21", assumptions=theorem_20.assumptions)
