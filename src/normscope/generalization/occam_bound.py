"""Occam's bound: the error of a network that is described by few bits is close to its training error."""

import math

from normscope.core.errors import InputError
from normscope.core.numbers import check_fraction
from normscope.core.statement import statement
from normscope.core.value import Kind, Value
from normscope.generalization.held_out import clopper_pearson
from normscope.generalization.pac_bayes import inverse_kl

_COMPRESSED = "of the compressed network"


@statement("normscope", "Proposition GEN-17", holds="a code fixed before the data; codes of one length prefix-free")
def code_divergence(bits: float) -> float:
    """Return ``b ln 2 + 2 ln(b + 1) + ln(pi^2/6)``: minus the log of the probability that a prior gives to a code.

    The prior gives length ``b`` the weight ``6/(pi (b + 1))^2`` and every code of that length ``2^-b`` of it.

    >>> round(code_divergence(0), 4), round(code_divergence(3000), 1)
    (0.4977, 2096.0)
    """
    if not bits >= 0:
        raise InputError(f"Expected a number of bits, got {bits}.")
    return bits * math.log(2) + 2 * math.log(bits + 1) + math.log(math.pi**2 / 6)


@statement("normscope", "Proposition GEN-17", holds="0-1 loss, a code fixed before the data")
def occam(errors: int, samples: int, bits: float, delta: float) -> Value:
    """Return the largest ``p`` with ``m kl(errors/m || p) <= code_divergence(bits) + ln(1/delta)``.

    By the Chernoff bound for each code and a union over all of them; no ``ln(2 sqrt(m))`` is needed for a single one.

    Args:
        errors: of the training samples.
        samples: ``m``.
        bits: length of the code of the network.
        delta: failure probability.

    >>> round(occam(7_500, 50_000, 3000, 0.05).value, 3)
    0.271
    """
    check_fraction(delta, "delta, a probability,")
    if samples < 1 or not 0 <= errors <= samples:
        raise InputError(f"Expected at least one sample and 0 <= errors <= samples, got {errors} of {samples}.")
    limit = inverse_kl(errors / samples, (code_divergence(bits) + math.log(1 / delta)) / samples)
    assumed = ("a code fixed before the data", _COMPRESSED)
    label = "normscope Proposition GEN-17"
    return Value.of(limit, Kind.PROBABILISTIC, statement=label, assumptions=assumed, delta=delta)


@statement("normscope", "Proposition GEN-18", holds="unlabelled inputs not used to choose either network")
def by_surrogate(surrogate: Value, disagreements: int, inputs: int, delta: float) -> Value:
    """Return a bound on the error of a network: that of a surrogate plus the largest probability that they disagree.

    ``Pr[h wrong] <= Pr[s wrong] + Pr[h != s]``; the second is bounded from unlabelled inputs by Clopper and Pearson.

    Args:
        surrogate: bound on the error of the surrogate.
        disagreements: unlabelled inputs on which the two decide differently.
        inputs: how many there are.
        delta: probability with which the second part may fail; it adds to that of the first.

    >>> one = Value.of(0.1, Kind.PROBABILISTIC, delta=0.025)
    >>> bound = by_surrogate(one, 300, 10_000, 0.025)
    >>> round(bound.value, 4), bound.delta
    (0.1335, 0.05)
    """
    whole = surrogate + clopper_pearson(disagreements, inputs, delta)
    kept = (a for a in surrogate.assumptions if a != _COMPRESSED)
    assumed, label = (*kept, "unlabelled inputs not used before"), "normscope Proposition GEN-18"
    return Value(whole.log, whole.kind, statement=label, assumptions=assumed, delta=surrogate.delta + delta)
