"""Corollary 14: the constant of a loss of a network in its weights, printed and corrected."""

from dataclasses import replace

from normscope.core.statement import statement
from normscope.core.value import Kind, Value, product


@statement("than2025", "Corollary 14", holds="corrected: the constant of the loss multiplies that of the network")
def corollary_14(network: Value, loss: Value) -> Value:
    """Return ``||f, W_i|| <= ||l|| ||h, W_i||`` for a loss ``f = l(h)``: ``sqrt(n) ||h, W_i||`` for the l1 loss.

    Args:
        network: the constant of the network in the weights of one layer, or in its input.
        loss: the constant of the loss in its outputs, as :func:`normscope.lipschitz.loss.loss_constant` returns it.

    >>> from normscope.lipschitz.loss.regression import l1
    >>> round(corollary_14(Value.of(18.0, Kind.CERTIFIED), l1(4, reduction="sum")).value, 12)
    36.0
    """
    return replace(product((network, loss)), statement="than2025 Corollary 14")


@statement(
    "than2025", "Corollary 14", holds="printed; a bound only for one output: the l1 loss has the constant sqrt(n)"
)
def corollary_14_printed(network: Value) -> Value:
    """Return what is printed for the l1 loss, ``||f, W_i|| = ||h, W_i||``.

    >>> round(corollary_14_printed(Value.of(18.0, Kind.CERTIFIED)).value, 12)
    18.0
    """
    return replace(network, kind=Kind.PRINTED, statement="than2025 Corollary 14")
