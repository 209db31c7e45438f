"""How well a measure ranks trained networks by their generalization gap: Kendall's tau and conditional information."""

import itertools
import math
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence

from scipy.stats import kendalltau

from normscope.core.errors import InputError
from normscope.core.statement import statement

#: Hyper-parameters that are conditioned on together, at most.
TOGETHER = 2
Setting = Mapping[str, Hashable]


@statement("jiang2020", "Kendall's rank correlation", holds="an estimate from the given runs")
def kendall(measure: Sequence[float], gap: Sequence[float]) -> float:
    """Return Kendall's tau between a measure and the gap, ties counted as half; NaN where all are equal.

    >>> kendall([1.0, 2.0, 3.0], [0.1, 0.2, 0.3])
    1.0
    """
    _check(measure, gap)
    return float(kendalltau(measure, gap).statistic)


@statement("jiang2020", "granulated Kendall coefficient", holds="an estimate from the given runs")
def granulated_kendall(measure: Sequence[float], gap: Sequence[float], settings: Sequence[Setting]) -> dict[str, float]:
    """Return for each hyper-parameter the mean tau over groups of runs that differ in nothing else.

    Args:
        measure: one number for each run.
        gap: of each run.
        settings: hyper-parameters of each run, the same names for all.

    >>> runs = [{"depth": d, "width": w} for d in (1, 2) for w in (8, 9)]
    >>> granulated_kendall([1, 2, 3, 4], [0.1, 0.2, 0.0, 0.1], runs)
    {'depth': -1.0, 'width': 1.0}
    """
    _check(measure, gap, settings)
    found: dict[str, float] = {}
    for name in settings[0]:
        groups: dict[Hashable, list[int]] = {}
        for i, setting in enumerate(settings):
            groups.setdefault(tuple(v for k, v in setting.items() if k != name), []).append(i)
        taus = [kendall([measure[i] for i in g], [gap[i] for i in g]) for g in groups.values() if len(g) > 1]
        known = [t for t in taus if not math.isnan(t)]
        found[name] = math.fsum(known) / len(known) if known else math.nan
    return found


@statement("jiang2020", "conditional mutual information score", holds="an estimate from the given runs")
def information_score(measure: Sequence[float], gap: Sequence[float], settings: Sequence[Setting]) -> float:
    r"""Return the least ``I(V_m; V_g | U_S)/H(V_g | U_S)`` over sets ``S`` of at most two hyper-parameters, in percent.

    ``V_m`` and ``V_g`` are the signs of the differences of measure and gap of a pair of runs, ``U_S`` the values of the
    hyper-parameters in ``S`` of both. A measure that only tells one hyper-parameter apart scores zero.

    Arguments are those of :func:`granulated_kendall`.

    >>> runs = [{"depth": d, "width": w} for d in (1, 2) for w in (8, 9)]
    >>> round(information_score([1, 2, 3, 4], [1, 2, 3, 4], runs))
    100
    """
    _check(measure, gap, settings)
    names = list(settings[0])
    sets = [s for k in range(TOGETHER + 1) for s in itertools.combinations(names, k)]
    return 100 * min(_information(measure, gap, settings, s) for s in sets)


def _information(
    measure: Sequence[float], gap: Sequence[float], settings: Sequence[Setting], names: tuple[str, ...]
) -> float:
    """Return the information about the order of gaps that the measure gives beyond some hyper-parameters."""
    groups: dict[Hashable, Counter[tuple[int, int]]] = defaultdict(Counter)
    for i, j in itertools.permutations(range(len(gap)), 2):
        if gap[i] != gap[j]:
            values = tuple((settings[i][n], settings[j][n]) for n in names)
            groups[values][_sign(measure[i] - measure[j]), _sign(gap[i] - gap[j])] += 1
    whole = sum(cell.total() for cell in groups.values())
    information = uncertainty = 0.0
    for cell in groups.values():
        size = cell.total()
        first, second = ({s: sum(n for k, n in cell.items() if k[a] == s) for s in (-1, 0, 1)} for a in (0, 1))
        for (a, b), n in cell.items():
            information += n / whole * math.log(n * size / (first[a] * second[b]))
        uncertainty -= sum(n / whole * math.log(n / size) for n in second.values() if n)
    return information / uncertainty if uncertainty > 0 else 1.0


def _sign(x: float) -> int:
    return (x > 0) - (x < 0)


def _check(measure: Sequence[float], gap: Sequence[float], settings: Sequence[Setting] | None = None) -> None:
    """Raise unless there are as many measures as gaps and settings, at least two, all with the same names."""
    count = len(gap) if settings is None else len(settings)
    if len(measure) != len(gap) or count != len(gap) or len(gap) < 2:
        raise InputError(
            f"Expected a measure, a gap and a setting for each of two runs or more, got {len(measure)} and {len(gap)}."
        )
    if settings is not None and any(set(s) != set(settings[0]) for s in settings):
        raise InputError("Expected the same hyper-parameters for all runs.")
