"""``python -m benchmarks.doctor [NAME ...]``: how many of the bugs are found, and what is said of their twins."""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import torch

import benchmarks.doctor
from benchmarks.doctor.case import CASES, Case, Setup


@dataclass(frozen=True)
class Outcome:
    """What came of one case.

    Attributes:
        case: the case.
        found: codes that spoke at the right layer, as they should.
        elsewhere: codes that should speak and did so at another place.
        extra: warnings and errors of other rules on the network with the bug.
        alarms: warnings and errors on the twin.
        seconds: CPU time of both checks.
    """

    case: Case
    found: tuple[str, ...]
    elsewhere: tuple[str, ...]
    extra: tuple[str, ...]
    alarms: tuple[str, ...]
    seconds: float


def load() -> dict[str, Case]:
    """Return every case of every topic."""
    for module in pkgutil.iter_modules(benchmarks.doctor.__path__):
        if module.name != "__main__":
            importlib.import_module(f"benchmarks.doctor.{module.name}")
    return CASES


def examine(case: Case) -> Outcome:
    """Check a network with a bug, and its twin."""
    start = time.process_time()
    bad, good = (_findings(case.setup(bug=bug)) for bug in (True, False))
    seconds = time.process_time() - start
    right = [f for f in bad if f.code in case.codes]
    at = tuple(sorted({f.code for f in right if set(_places(f)) & set(case.places)}))
    loud = {"warning", "error"}
    return Outcome(
        case,
        at,
        tuple(f"{f.code}@{','.join(_places(f))}" for f in right if f.code not in at),
        tuple(f"{f.code}@{f.place}" for f in bad if f.code not in case.codes and f.severity.value in loud),
        tuple(f"{f.code}@{f.place}: {f.message}" for f in good if f.severity.value in loud),
        seconds,
    )


def _findings(setup: Setup) -> tuple:
    import normscope

    return normscope.check(setup.model, setup.data, setup.optimizer, **setup.options).findings


def _places(finding: object) -> tuple[str, ...]:
    return tuple(getattr(finding, "places", ())) or (finding.place,)


def table(outcomes: list[Outcome]) -> str:
    """Return recall and false alarms of each rule, and what was missed."""
    wanted = Counter(o.case.codes[0] for o in outcomes)
    found = Counter(o.case.codes[0] for o in outcomes if o.found)
    alarms = Counter(a.partition("@")[0] for o in outcomes for a in o.alarms)
    lines = ["| rule | bugs | found | false alarms on twins |", "|---|---|---|---|"]
    lines += [f"| {c} | {wanted[c]} | {found[c]} | {alarms[c]} |" for c in sorted(set(wanted) | set(alarms))]
    lines += [f"| all | {len(outcomes)} | {sum(found.values())} | {sum(alarms.values())} |", ""]
    for o in outcomes:
        if not o.found:
            lines.append(f"missed {o.case.name} ({', '.join(o.case.codes)} at {', '.join(o.case.places)}): "
                         f"elsewhere {o.elsewhere or 'nothing'}, others {o.extra or 'nothing'}")  # fmt: skip
    lines += [f"false alarm on the twin of {o.case.name}: {a}" for o in outcomes for a in o.alarms]
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen cases and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.doctor", description=__doc__)
    parser.add_argument("names", nargs="*", help="cases or topics; all by default")
    parser.add_argument("--verbose", action="store_true", help="print every finding of the networks with bugs")
    parser.add_argument("--json", type=Path, help="write the outcomes to this file")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    cases = [c for c in load().values() if not given.names or {c.name, c.topic} & set(given.names)]
    outcomes = []
    for case in cases:
        outcome = examine(case)
        outcomes.append(outcome)
        if given.verbose:
            print(f"\n{case.name} ({case.thread})")
            for f in _findings(case.setup(bug=True)):
                print(f"  {f.severity.value} {f.code} {f.place}: {f.message}")
        else:
            print("." if outcome.found and not outcome.alarms else "x", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(table(outcomes))
    if given.json is not None:
        rows = [{"name": o.case.name, "thread": o.case.thread, "codes": o.case.codes, "found": o.found,
                 "alarms": o.alarms, "seconds": round(o.seconds, 2)} for o in outcomes]  # fmt: skip
        given.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
