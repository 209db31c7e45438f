"""``python -m benchmarks [NAME ...] [--quick]``; the names are those of :data:`CHOICES`."""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks.machine import use_one_thread

CHOICES = (
    "convolutions",
    "certificates",
    "bounds",
    "normalization",
    "front",
    "analyze",
    "growth",
    "large",
    "monitor",
    "curvature",
    "generalization",
    "symmetries",
)


def main(arguments: list[str] | None = None) -> int:
    """Run the chosen benchmarks, print their tables and write results.json and RESULTS.md."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Speed and accuracy beside the peers.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"{', '.join(CHOICES)}; all by default")
    parser.add_argument("--quick", action="store_true", help="tiny shapes: does everything run?")
    parser.add_argument("--out", type=Path, help="where to write; by default this folder, with --quick nowhere")
    parser.add_argument("--render", action="store_true", help="measure nothing, write RESULTS.md again")
    parser.add_argument(
        "--only",
        default="",
        help="networks (convolutions, analyze, bounds, large, generalization) or parts (curvature) to measure, split "
        "by commas",
    )
    parser.add_argument("--missing", action="store_true", help="measure only what results.json does not have yet")
    given = parser.parse_args(arguments)
    unknown = sorted(set(given.names) - set(CHOICES))
    if unknown:
        parser.error(f"benchmarks are {', '.join(CHOICES)}; came {', '.join(unknown)}")
    from benchmarks.report import text_report, write_report  # late: wrong use is said before torch is loaded

    use_one_thread()
    out = given.out or (None if given.quick else Path(__file__).parent)
    results = _earlier(out)
    for name in () if given.render else given.names or CHOICES:
        module = importlib.import_module(f"benchmarks.{name}")
        settings = module.QUICK if given.quick else module.Settings()
        earlier = results.get(name, {})
        if name in ("convolutions", "analyze", "bounds", "large", "generalization"):
            known = [row["name"] for row in earlier.get("rows", ())] if given.missing else ()
            settings = replace(settings, only=tuple(filter(None, given.only.split(","))), known=tuple(known))
        if name == "curvature":
            settings = replace(settings, only=tuple(filter(None, given.only.split(","))))
        print(f"== {name}", flush=True)
        for found in module.run(settings, lambda line: print(line, flush=True)):
            results[name] = _merged(earlier, found) if given.only or given.missing else found
            if out is not None:  # what was measured is kept, also when the rest is not
                write_report(results, out)
        if name not in results:
            print("nothing is missing")
            continue
        print(text_report({name: results[name]}))
    if given.render and out is not None:
        write_report(results, out)
    return 0


def _earlier(out: Path | None) -> dict:
    """Return the results already there."""
    file = None if out is None else out / "results.json"
    return json.loads(file.read_text()) if file is not None and file.exists() else {}


def _merged(earlier: dict, found: dict) -> dict:
    """Return a section with the rows, or the tables, measured before and not again."""
    if "rows" not in found:
        return earlier | found | {"several_runs": True}
    again = {row["name"] for row in found["rows"]}
    kept = [row for row in earlier.get("rows", ()) if row["name"] not in again]
    return found | {"rows": kept + found["rows"], "several_runs": bool(kept)}


if __name__ == "__main__":
    sys.exit(main())
