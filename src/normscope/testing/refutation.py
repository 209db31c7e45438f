"""The outcome of an attempt to refute certified numbers: each attack, how close it came, what was refuted."""

import math
from dataclasses import dataclass
from typing import Any

from normscope.core.files import Saved
from normscope.core.number_text import number_text
from normscope.core.value import LN10, json_number

#: Version of the JSON form.
REFUTATION_VERSION = 1
#: A bound counts as refuted if what is attained exceeds it by more than this, relatively.
TOLERANCE = 1e-9


@dataclass(frozen=True)
class Attack:
    """One certified number and what was attained against it.

    Attributes:
        table: where it stands: ``layers``, ``normalizers``, ``depth``, ``end_to_end``, ``effect``, ``around``,
            ``weights``.
        name: its row or place, e.g. ``conv1``.
        number: which number of it, e.g. ``upper``.
        domain: the inputs it is about.
        claimed: natural logarithm of the number.
        attained: natural logarithm of what was attained, or of the truth for a claimed lower bound.
        lower: whether the number claims to be attained, so that the truth must be at least as large.
        how: what was done.

    >>> Attack("layers", "fc", "upper", "all inputs", 0.0, 0.1).refuted
    True
    """

    table: str
    name: str
    number: str
    domain: str
    claimed: float
    attained: float
    lower: bool = False
    how: str = "pair"

    @property
    def refuted(self) -> bool:
        """Return whether the number is wrong."""
        if self.lower:
            return self.claimed > self.attained + TOLERANCE
        return self.attained > self.claimed + TOLERANCE

    @property
    def ratio(self) -> float:
        """Return how much of the claimed number was attained: above one an upper bound is refuted."""
        if self.attained == self.claimed:
            return 1.0
        return math.exp(min(self.attained - self.claimed, 700.0))

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "table": self.table,
            "name": self.name,
            "number": self.number,
            "domain": self.domain,
            "claimed_log10": json_number(self.claimed / LN10),
            "attained_log10": json_number(self.attained / LN10),
            "ratio": json_number(self.ratio),
            "lower": self.lower,
            "how": self.how,
            "refuted": self.refuted,
        }

    def __str__(self) -> str:
        sign = ">=" if self.lower else "<="
        mark = "REFUTED" if self.refuted else "holds"
        attained, claimed = (number_text(log / LN10, 9) for log in (self.attained, self.claimed))
        place = f"{self.table}[{self.name or 'model'}].{self.number}"
        return f"{mark:8} {place}: attained {attained} {sign} claimed {claimed}, ratio {self.ratio:.6g} ({self.how})"


@dataclass(frozen=True)
class Refutation(Saved):
    """What came of an attempt to refute every certified number of a model's results.

    Attributes:
        model: its name.
        seed: random seed.
        attacks: every number attacked.
        skipped: numbers that were not attacked, each with the reason.
    """

    model: str
    seed: int
    attacks: tuple[Attack, ...]
    skipped: tuple[tuple[str, str], ...] = ()

    @property
    def refuted(self) -> tuple[Attack, ...]:
        """Return the numbers that are wrong."""
        return tuple(a for a in self.attacks if a.refuted)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form."""
        return {
            "schema_version": REFUTATION_VERSION,
            "kind": "refutation",
            "model": self.model,
            "seed": self.seed,
            "refuted": len(self.refuted),
            "attacks": [a.to_dict() for a in self.attacks],
            "skipped": [{"number": number, "reason": reason} for number, reason in self.skipped],
        }

    def __str__(self) -> str:
        finite = [a for a in self.attacks if math.isfinite(a.claimed) and not a.lower]
        nearest = sorted(finite, key=lambda a: a.ratio, reverse=True)[:5]
        lines = [
            f"{self.model}: {len(self.attacks)} certified numbers attacked, {len(self.refuted)} refuted, "
            f"{len(self.skipped)} not attacked (seed {self.seed})"
        ]
        lines += [str(a) for a in self.refuted]
        if nearest and not self.refuted:
            lines += ["Nearest:", *(str(a) for a in nearest)]
        lines += [f"not attacked: {number}: {reason}" for number, reason in self.skipped[:10]]
        if len(self.skipped) > 10:
            lines.append(f"... and {len(self.skipped) - 10} more")
        return "\n".join(lines)
