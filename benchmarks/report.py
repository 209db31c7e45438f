"""Tables of the results, the same on the terminal and in RESULTS.md."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from benchmarks.convolutions import LEAST_SECONDS, PATIENCE, TARGET_SECONDS, faster, missed, one_sided, totals
from benchmarks.peers import ONE_SIDED

Section = dict[str, Any]
HEAD = """# Benchmarks

`make bench` measures all of this, which is

    pip install -c constraints.txt -r benchmarks/requirements.txt
    python -m benchmarks

Weights are random: He-normal by seed for the convolutions, the zoo's own initial weights for whole analyses and growth.
Timings use one thread and a process of their own. The load average in each section is that at its last measurement."""


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table, its columns aligned so that it reads on a terminal too."""
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    lines = [
        "| " + " | ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)) + " |" for row in (head, *rows)
    ]
    lines.insert(1, "|" + "|".join("-" * (w + 2) for w in widths) + "|")
    return "\n".join(lines)


def percent(value: float) -> str:
    """Return a relative number in per cent, or a factor where it is large.

    >>> percent(0.00056), percent(-0.35), percent(20.7), percent(4e-12)
    ('+0.056 %', '-35 %', '21.7 x', '<0.001 %')
    """
    if math.isinf(value):
        return "infinite"
    if abs(value) < 1e-5:
        return "<0.001 %"
    return f"{100 * value:+.2g} %" if value < 0.995 else f"{value + 1:.3g} x"


def width(value: float) -> str:
    """Return a width in per cent, without a sign."""
    return percent(value).lstrip("+")


def seconds(value: float) -> str:
    """Return seconds with three digits."""
    return f"{value:.3g}"


def _where(section: Section) -> str:
    """Return the environment as a line."""
    e = section["environment"]
    return (
        f"{e['processor']}, {e['cores']} cores, {e['threads']} thread used, load average {e['load_average']}; "
        f"Python {e['python']}, torch {e['torch']}, numpy {e['numpy']}, scipy {e['scipy']}, "
        f"normscope {e['normscope']}." + (" Rows come from several runs." if section.get("several_runs") else "")
    )


def convolutions(section: Section) -> str:
    """Return the tables of the convolutions."""
    parts = [_where(section), _targets(section), _ours(section), _peers(section), _errors(section), _equal(section)]
    parts.append(_one_sided(section))
    return "\n\n".join(parts)


def _targets(section: Section) -> str:
    """Return totals, missed targets and faster peers in sentences."""
    rows = [
        [
            name,
            f"{t['convolutions']} of {section['convolutions'][name]}",
            str(t["shapes"]),
            seconds(t["cpu"]),
            seconds(t["wall"]),
            seconds(t["cpu_distinct"]),
        ]
        for name, t in totals(section["rows"]).items()
    ]
    head = ["network", "convolutions", "shapes", "CPU s, all", "wall s, all", "CPU s, each shape once"]
    lines = [table(head, rows), ""]
    for row in missed(section["rows"]):
        lines.append(
            f"- target missed: {row['layer']}: width {width(row['width'])}, target {width(row['target'])} "
            f"(with probability 1 - 1e-9 the width is {width(row['probable_width'])})"
        )
    if not missed(section["rows"]):
        lines.append("- every width meets its target")
    for name, limit in TARGET_SECONDS.items():
        spent = section.get("in_one_process", {}).get(name)
        if spent is not None:
            met = "met" if spent <= limit else "missed"
            lines.append(
                f"- target {met}: all of {name} in {limit:g} CPU s on one core; one after another in one process they "
                f"take {seconds(spent)} (above: each in a fresh process, where the first touch of memory counts)"
            )
    return "\n".join([*lines, *_verdicts(section)])


def _verdicts(section: Section) -> list[str]:
    """Return, for every peer, where it is as accurate as our width, and where in less time."""
    lines = []
    quicker = faster(section["rows"])
    for peer in section["peers"]:
        found = [row["peers"][peer["name"]] for row in section["rows"] if "none" not in _of(row, peer["name"])]
        if not found or peer["name"] == ONE_SIDED[0]:
            continue
        reached = [f for f in found if "equal" in f]
        mine = [q for q in quicker if q["peer"] == peer["name"]]
        same = [f"{q['layer']} ({q['kind_ratio']:.2f})" for q in mine if q["kind_ratio"] < 1.0]
        both = [f"{q['layer']} ({q['cpu_ratio']:.2f})" for q in mine if q["kind_ratio"] >= 1.0]
        line = f"- {peer['name']} ({_claim(peer['claim'])}): within our width on {len(reached)} of {len(found)} layers"
        if same:
            line += f"; in less CPU time than any value of ours on {', '.join(same)}"
        elif reached:
            line += "; on none of them in less CPU time than our value of its kind"
        lines.append(line + (f"; in less than both our sides together on {', '.join(both)}" if both else ""))
    lines.append(
        "\nA method from below cannot tell how far it is from the norm: the effort it needs is read off the truth, "
        "which a user does not have. It is compared with our value from below, and with the time of both our sides, "
        "which is what `analyze` takes. `torch.linalg.matrix_norm` is a routine without a bound on its error, here for "
        "reference: on small matrices a certificate costs more than the value. Times are means of two runs, before and "
        "after the peers; a busy machine inflates CPU time too."
    )
    return lines


def _claim(claim: str) -> str:
    """Return what a peer's value is, in words."""
    return {"upper": "an upper bound", "lower": "from below", "neither": "no bound"}[claim]


def _ours(section: Section) -> str:
    """Return the table of our own bounds."""
    rows = []
    for row in section["rows"]:
        n, t = row["normscope"], row["truth"]
        rows.append(
            [
                row["name"],
                ", ".join(f"{k} {v}" for k, v in row["uses"].items()),
                f"{t['lower']:.6g}",
                width(t["upper"] / t["lower"] - 1),
                percent(n["lower_error"]),
                width(n["width"]),
                width(n["probable_width"]),
                width(row["target"]),
                seconds(n["cpu"]),
                seconds(n["wall"]),
                str(row.get("load", "")),
                n["method"],
            ]
        )
    head = ["layer", "used", "truth", "truth known to", "our lower", "certified width", "probable width", "target"]
    return table([*head, "CPU s", "wall s", "load", "method"], rows)


def _peers(section: Section) -> str:
    """Return what the peers are."""
    rows = [[p["name"], p["origin"], p["version"], p["claim"], p["usual"], p["times"]] for p in section["peers"]]
    return table(["peer", "what it is", "version", "bound", "usual effort", "time"], rows)


def _errors(section: Section) -> str:
    """Return the errors of the peers at their usual effort, one per line and layer."""
    names = [p["name"] for p in section["peers"] if p["version"] != "not installed"]
    rows = [
        [row["name"], width(row["normscope"]["width"]), *(_usual(_of(row, name), row) for name in names)]
        for row in section["rows"]
        if not row["is_matrix"]
    ]
    title = "Relative error at the usual effort (negative: below the truth, so no bound), CPU time over ours:"
    return f"{title}\n\n" + table(["layer", "our width", *names], rows)


def _of(row: dict[str, Any], name: str) -> dict[str, Any]:
    """Return what a peer did on a layer; rows of an earlier run may not know it."""
    found: dict[str, Any] = row["peers"].get(name, {"none": "not measured"})
    return found


def _usual(found: dict[str, Any], row: dict[str, Any]) -> str:
    """Return one cell of the table of errors."""
    if "none" in found:
        return f"({found['none']})"
    point = found.get("usual")
    if point is None:
        return f"({found.get('stopped', 'no value')})"
    return f"{percent(point['error'])}, {point['cpu'] / row['normscope']['cpu']:.2g}x"


def _equal(section: Section) -> str:
    """Return what each iterative peer needs to be as accurate as we are."""
    names = [p["name"] for p in section["peers"] if p["version"] != "not installed"]
    rows = []
    for row in section["rows"]:
        cells = [_reached(_of(row, name), row) for name in names]
        rows.append([row["name"], width(row["normscope"]["probable_width"]), *cells])
    title = (
        "Effort and CPU time over ours until the error is within our width; where it is not reached within "
        f"{PATIENCE:g} times our time (and {LEAST_SECONDS:g} s), the last effort, its error and time:"
    )
    return f"{title}\n\n" + table(["layer", "width to reach", *names], rows)


def _reached(found: dict[str, Any], row: dict[str, Any]) -> str:
    """Return one cell of the table at equal accuracy."""
    if "none" in found:
        return f"({found['none']})"
    if "equal" in found:
        return f"{found['equal']['effort']}: {found['equal']['cpu_ratio']:.2g}x"
    if "last" not in found:
        return f"({found.get('stopped', 'no value')})"
    last = found["last"]
    return f"not reached; {last['effort']}: {percent(last['error'])} at {last['cpu'] / row['normscope']['cpu']:.2g}x"


def _one_sided(section: Section) -> str:
    """Return the comparison at equal work: values from below alone."""
    rows, fastest = [], dict.fromkeys(ONE_SIDED, 0)
    for entry in one_sided(section["rows"]):
        cells, times = [], {}
        for name in ONE_SIDED:
            found = entry["methods"].get(name, {"none": "not measured"})
            point = found.get("equal")
            if point is not None:
                times[name] = point["cpu"]
                cells.append(f"{point['effort']}: {seconds(point['cpu'])}")
            elif "last" in found:
                cells.append(f"not reached: {percent(found['last']['error'])} after {seconds(found['last']['cpu'])}")
            else:
                cells.append(f"({found.get('none', found.get('stopped', 'no value'))})")
        if times:
            fastest[min(times, key=times.__getitem__)] += 1
        rows.append([entry["layer"], width(entry["width"]), *cells])
    counts = ", ".join(f"{name} on {count}" for name, count in fastest.items())
    title = (
        "Equal work: values from below alone, effort and CPU s until the error is within the width given "
        "(steps, iterations, tolerance). None of these is a bound from above, and where to stop is read off the truth. "
        f"The fastest: {counts}."
    )
    return f"{title}\n\n" + table(["layer", "error to reach", *ONE_SIDED], rows)


def certificates(section: Section) -> str:
    """Return the table of false certificates."""
    rows = [
        [r["network"], f"{r['jacobian']:.5g}", r["eclipse"], r["eclipse_verdict"], f"{r['normscope']:.5g}"]
        for r in section["rows"]
    ]
    head = [
        "network",
        "largest Jacobian norm found",
        f"eclipse-nn {section['version']}",
        "so it is",
        "normscope certified",
    ]
    note = (
        "The networks are small and built to show this. eclipse-nn raises nothing here; its `model_review()` prints "
        "that only fully connected networks are meant."
    )
    tighter = [r["network"] for r in section["rows"] if r["eclipse_verdict"] == "a bound" and _below(r)]
    if tighter:
        note += f" Where it reads the network right its bound is the tighter one: {'; '.join(tighter)}."
    return "\n\n".join([_where(section), table(head, rows), note])


def _below(row: dict[str, Any]) -> bool:
    """Return whether a peer's bound lies below ours."""
    return float(row["eclipse"]) < row["normscope"]


def analyze(section: Section) -> str:
    """Return the cost of whole analyses."""
    rows = [
        [
            r["name"],
            seconds(r["forward"]),
            seconds(r["cpu"]),
            seconds(r["wall"]),
            f"{r['forwards']:.3g}",
            "" if r["target"] is None else f"{r['target']:g}",
            f"{r['memory_mib']:.0f}",
            f"{r['import_mib']:.0f}",
        ]
        for r in section["rows"]
    ]
    head = [
        "network",
        "forward of 32, CPU s",
        "analyze, CPU s",
        "wall s",
        "in forwards",
        "target",
        "peak MiB",
        "of it, torch",
    ]
    stages = []
    for r in section["rows"]:
        parts = ", ".join(f"{name} {100 * cpu / r['cpu']:.0f} %" for name, cpu in r["stages"].items())
        stages.append(f"- {r['name']}: {parts}")
    return "\n\n".join([_where(section), table(head, rows), "Where the CPU time goes:", "\n".join(stages)])


def front(section: Section) -> str:
    """Return what the first answers cost."""
    rows = []
    for r in section["rows"]:
        row = [r["name"], seconds(r["forward"])]
        for task in ("first look", "check", "torchinfo"):
            cpu = r[task].get("cpu")
            row += ["not installed", ""] if cpu is None else [seconds(cpu), f"{cpu / r['forward']:.3g}"]
        rows.append(row)
    head = ["network", "forward of 1, CPU s"]
    for task in ("first verdict", "check", "torchinfo.summary"):
        head += [f"{task}, CPU s", "in forwards"]
    said = (
        "Torch and its export are loaded before the clock starts; each is given two samples. The first verdict is what "
        "`normscope analyze` shows before it goes on: the doctor's quick rules, coverage, normalizers, certified "
        "bounds and an attained value. A check runs every rule that needs no more than two samples. torchinfo runs the "
        "network once and counts parameters and multiplications."
    )
    return "\n\n".join([_where(section), table(head, rows), said])


def growth(section: Section) -> str:
    """Return the growth of the cost and the fitted exponents."""
    parts = [_where(section)]
    for series in section["series"]:
        head = [series["axis"], *(str(p["size"]) for p in series["points"])]
        rows = [["CPU s", *(seconds(p["cpu"]) for p in series["points"])]]
        last = f"{series['last_exponent']:.2f}"
        parts.append(
            f"{series['network']}, {series['fixed']}: CPU time grows like {series['axis']}^{series['exponent']:.2f} "
            f"(between the last two sizes {last})\n\n" + table(head, rows)
        )
    return "\n\n".join(parts)


def large(section: Section) -> str:
    """Return what analyses of deep and wide networks take."""
    rows = []
    for r in section["rows"]:
        took, memory, announced = r["cpu"], r["memory_mib"], r["announced_mib"]
        cells = [r["name"], seconds(took), f"{r['target']:g}", "yes" if took <= r["target"] else "no"]
        rows.append([*cells, f"{memory:.0f}", percent(announced / memory - 1), f"{r['load']:.1f}"])
    head = ["network", "CPU s", "target", "met", "memory, MiB", "announced", "load"]
    note = "Other load, whose average stands beside each row, makes CPU time larger than on an idle machine."
    return "\n\n".join([_where(section), table(head, rows), note])


def monitor(section: Section) -> str:
    """Return what the monitor costs beside a training."""
    rows = [
        [
            r["name"],
            str(r["batch"]),
            seconds(r["step_cpu"]),
            str(r["steps"]),
            str(r["probes"]),
            seconds(r["probe_seconds"]),
            seconds(r["setup_seconds"]),
            f"{100 * r['share']:.2f} %",
            f"{100 * r['budget']:g} %",
            percent(r["overhead_cpu"]),
            "yes" if r["identical"] else "no",
        ]
        for r in section["rows"]
    ]
    head = ["training", "batch", "step, CPU s", "steps", "probes", "probe, s", "setup, s", "share of time", "budget"]
    note = (
        "Each training is made twice, with the monitor and without, step by step in turns. The share is the monitor's "
        "own wall time over that of its training, setup left out; beside it the ratio of CPU times, which other load "
        "disturbs. Identical: every loss, every weight and buffer, bit for bit."
    )
    return "\n\n".join([_where(section), table([*head, "CPU time", "identical"], rows), note])


def curvature(section: Section) -> str:
    """Return curvature beside the peers."""
    parts = [_where(section), *_products_and_eigenvalues(section)]
    if "modes" in section:
        head = ["tool, BatchNorm in training mode", "outcome", "buffers moved by", "still in training mode"]
        rows = [
            [r["tool"], r["outcome"], f"{r['buffers_moved_by']:.2g}", "yes" if r["still_training"] else "no"]
            for r in section["modes"]
        ]
        parts.append(table(head, rows))
    if "small" in section:
        parts += _dense_truths(section["small"])
    if "dual" in section:
        head = [
            "smallest eigenvalue that is not zero, running mode",
            "parameters",
            "outputs",
            "CPU s",
            "memory",
            "smallest",
            "residual",
            "condition number",
        ]
        rows = [
            [r["case"], f"{r['parameters']:,}", f"{r['outputs']:,}", seconds(r["cpu"]), f"{r['bytes'] / 1e9:.2g} GB",
             f"{r['smallest']:.4g}", f"{r['residual']:.0e}", f"{r['condition']:.4g}"]
            for r in section["dual"]
        ]  # fmt: skip
        parts.append(table(head, rows))
    if section.get("gaps"):
        parts.append(_gaps(section["gaps"]))
    if "monitor" in section:
        parts.append(_beside_training(section["monitor"]))
    if section.get("followed"):
        parts.append(_followed(section["followed"]))
    return "\n\n".join(parts)


def _beside_training(rows: list[Section]) -> str:
    """Return what readings of the largest eigenvalue cost beside training."""
    head = [
        "monitor, a reading every 100 updates: batch, probe",
        "updates",
        "update, CPU s",
        "readings",
        "products, mean (most)",
        "over updates, mean",
        "reading, CPU s",
        "of the training time",
        "median error (worst)",
        "bitwise the same",
    ]
    cells = [
        [f"{m['case']}, {m['batch']}, {m['probe']}", str(m["steps"]), seconds(m["step"]), str(m["readings"]),
         f"{m['products']:.1f} ({m['most']})", f"{m['updates']:.1f}", seconds(m["reading"]),
         f"{100 * m['overhead']:.1f} %", f"{width(m['median'])} ({width(m['worst'])})",
         f"{'yes' if m['identical'] else 'no'}, {m['compared']} updates"]
        for m in rows
    ]  # fmt: skip
    return table(head, cells)


def _followed(rows: list[Section]) -> str:
    """Return how near readings along a run came to the largest eigenvalue."""
    head = [
        "readings along a run (batch 64), after the first",
        "every ... updates, after",
        "readings",
        "products, mean (most)",
        "over updates, mean (most)",
        "median error (worst)",
        "of the estimate",
        "above 1 %",
        "not converged, marked",
        "above 1 % unmarked",
    ]

    def share(median: float, worst: float) -> str:
        return f"{100 * median:.1g} % ({100 * worst:.1g} %)"

    cells = [
        [r["case"], f"{r['every']}, {r['after']}", str(r["readings"]), f"{r['products']:.1f} ({r['most']})",
         f"{r['updates']:.1f} ({r['most_updates']})", share(r["median"], r["worst"]),
         share(r["estimate"], r["worst_estimate"]), str(r["above"]), str(r["unconverged"]), str(r["above_converged"])]
        for r in rows
    ]  # fmt: skip
    return table(head, cells)


def _gaps(rows: list[Section]) -> str:
    """Return the largest eigenvalues of one network in two modes of BatchNorm."""
    head = ["ResNet-20", "images", "mode", "loss", "largest five", "largest, running over batch", "model untouched"]
    cells = [
        [r["case"], str(r["images"]), mode, f"{r[mode]['loss']:.5f}",
         " ".join(f"{v:.3g}" for v in r[mode]["values"]),
         "" if mode == "batch" else f"{r['running']['values'][0] / r['batch']['values'][0]:.3g}",
         "yes" if r["untouched"] else "no"]
        for r in rows
        for mode in ("batch", "running")
    ]  # fmt: skip
    return table(head, cells)


def _products_and_eigenvalues(section: Section) -> Iterator[str]:
    """Yield tables of products and of the largest eigenvalues."""
    if section.get("cost"):
        head = ["network", "mode", "gradient, CPU s", "set-up", "product", "product, gradients (median)"]
        rows = [
            [r["case"], r["mode"], seconds(r["gradient"]), seconds(r["setup"]), seconds(r["product"]),
             f"{r['ratio']:.2f} ({r['median_ratio']:.2f})"]
            for r in section["cost"]
        ]  # fmt: skip
        yield table(head, rows)
    rows = []
    for r in section.get("top", ()):  # not there while products alone are measured
        if "error" in r:
            rows.append([r["case"], r["tool"], "-", "-", r["error"], "-"])
            continue
        count = str(r["products"] or "-")
        rows.append([r["case"], r["tool"], count, seconds(r["cpu"]), f"{r['residual']:.1e}", f"{r['values'][0]:.5g}"])
    if rows:
        yield table(["network, evaluation mode", "tool", "products", "CPU s", "worst residual", "largest"], rows)
    if "training" in section:
        names = (
            "network, training mode",
            "products",
            "CPU s",
            "worst residual",
            "|VV'-I|",
            "model untouched",
            "largest",
        )
        rows = [
            [r["case"], str(r["products"]), seconds(r["cpu"]), f"{r['residual']:.1e}", f"{r['orthogonality']:.1e}",
             "yes" if r["untouched"] else "no", f"{r['values'][0]:.5g}"]
            for r in section["training"]
        ]  # fmt: skip
        yield table(list(names), rows)


def _dense_truths(small: Section) -> Iterator[str]:
    """Yield tables of what small networks give beside dense truths."""
    rows = []
    for r in small["plain"]:
        t = r["trace"]
        rows.append([
            f"{r['activation']}, {r['parameters']}", f"{r['exact_costs']:.0f} + {t['products']}",
            f"{100 * t['coverage']:.1f} %", f"{100 * t['median_error']:.2f} %", f"{100 * t['hutchinson']:.2f} %",
        ])  # fmt: skip
    head = [
        "trace: activation, parameters",
        "price in products",
        "95 % interval covers",
        "median error",
        "Hutchinson, 60",
    ]
    yield table(head, rows)
    rows = []
    for r in small["plain"]:
        d = r["density"]
        for x in d["rows"]:
            shown = " / ".join(f"{v:.2e}" for v in x["distance"]) if "distance" in x else x["error"]
            rows.append([r["activation"], str(d["products"]), x["tool"], shown])
    yield table(
        ["density: activation", "products", "tool", "median distance to the spectrum (quadrature / curve)"], rows
    )
    rows = [[m, f"{q['condition']:.6g}", f"{q['smallest']:.6g}"] for m, q in small["condition"].items()]
    head = [f"{small['condition_parameters']} parameters, modulo symmetries", "condition number", "smallest eigenvalue"]
    yield table(head, rows)


def bounds(section: Section) -> str:
    """Return bounds beside their targets."""
    rows = []
    for row in section["rows"]:
        for found in row["items"]:
            wanted = "" if found["target"] is None else f"{found['side']} {found['target']:g}"
            met = {None: "", True: "met", False: "missed"}[found["met"]]
            value = "-" if math.isnan(found["value"]) else f"{found['value']:.5g}"
            rows.append([row["name"], found["what"], value, wanted, met, seconds(found["cpu"]), found["note"]])
    head = ["network", "quantity", "value", "target", "", "CPU s", "remark"]
    note = (
        "Bounds are certified, rounding included, unless a remark says otherwise; a statement about 95 % of inputs has "
        "confidence 99 %. CPU times are of one thread; a busy machine inflates them. CIFAR-10, MNIST and the weights "
        "of ResNet-20 are looked for in `$NORMSCOPE_DATA`. auto_LiRPA runs from its source: it asks for an older torch."
    )
    return "\n\n".join([_where(section), table(head, rows), note])


def normalization(section: Section) -> str:
    """Return the same network with different normalizers, side by side."""
    facts = section["settings"]
    radii = [ball["radius"] for ball in section["rows"][0]["balls"]]
    rows = []
    for row in section["rows"]:
        near = [f"{b['median']:.3g}" + (f" ({b['bound']:.3g})" if b["bound"] is not None else "") for b in row["balls"]]
        decided = [f"{100 * b['decided']:.0f} %" for b in row["balls"] if b["decided"] is not None]
        cells = [row["name"], str(row["seed"]), f"{100 * row['accuracy']:.1f} %", str(row["epochs"]), *near]
        everywhere = f"10^{row['log10_global']:.2f}"
        rows.append([*cells, *decided, f"{row['certified_radius']:.3g}", f"{row['attained']:.3g}", everywhere])
    head = ["normalizer", "seed", "accuracy", "epochs", *(f"within {r:g}" for r in radii)]
    head += [*(f"decided at {r:g}" for r in radii if r), "median certified radius", "attained", "all inputs"]
    note = (
        f"{facts['depth']} linear layers of width {facts['width']} on {facts['data']}, each trained to one accuracy. "
        f"Within a radius: the median over {facts['points']} held-out images, in brackets what 95 % of inputs stay "
        "below (confidence 99 %). Decided: share of images whose decision is proved not to change within the radius."
    )
    return "\n\n".join([_where(section), table(head, rows), note])


def generalization(section: Section) -> str:
    """Return what the tables of bounds cost and say."""
    rows = []
    names = list(section["rows"][0]["bounds"])
    for r in section["rows"]:
        truth, said = r["truth"], r["bounds"]
        shown = ["-" if said[n] is None else f"{said[n]:.3g}" for n in names]
        rows.append([r["name"], seconds(r["cpu"]), seconds(r["wall"]), f"{truth['test_error']:.3g}", *shown])
    head = ["network", "table, CPU s", "wall s", "test error", *names]
    note = (
        "The whole table of `normscope bounds`, with 20 and 60 seconds for a trained posterior in the first two. Each "
        "certificate holds with probability 95 %; what is below guessing says something. PAC-Bayes without "
        "disagreement is about a randomized network."
    )
    return "\n\n".join([_where(section), table(head, rows), note])


def symmetries(section: Section) -> str:
    """Return what finding and verifying symmetries costs."""
    rows = [
        [
            r["name"],
            f"{r['parameters']:,}",
            str(r["tensors"]),
            f"{r['dimension']:,}",
            seconds(r["forward"]),
            seconds(r["cpu"]),
            f"{r['ratio']:.2f}",
        ]
        for r in section["rows"]
    ]
    head = ["network", "parameters", "tensors", "dimension", "forward, CPU s", "search, CPU s", "forwards per tensor"]
    note = (
        "All symmetries in batch mode with their certificates (derivative, orbit, gradient, Hessian, stabilizers) and "
        "permutations, without the capture; the forward pass is that in float64 on the same batch. At most 3 per "
        "tensor is the aim; a forward pass of a toy network takes milliseconds, less than Python beside it."
    )
    return "\n\n".join([_where(section), table(head, rows), note])


RENDER: dict[str, tuple[str, Callable[[Section], str]]] = {
    "convolutions": ("Norms of convolutions", convolutions),
    "certificates": ("False certificates", certificates),
    "bounds": ("Bounds that decide something", bounds),
    "normalization": ("Normalizers at equal accuracy", normalization),
    "front": ("First answers", front),
    "analyze": ("Whole analyses", analyze),
    "growth": ("Growth with depth and width", growth),
    "large": ("Deep and wide networks", large),
    "monitor": ("A monitor beside training", monitor),
    "curvature": ("Curvature", curvature),
    "generalization": ("Generalization bounds", generalization),
    "symmetries": ("Symmetries", symmetries),
}


def text_report(results: dict[str, Section]) -> str:
    """Return all tables as Markdown."""
    parts = []
    for name, (title, render) in RENDER.items():
        if name in results:
            parts.append(f"## {title}\n\nReproduce: `python -m benchmarks {name}`\n\n{render(results[name])}")
    return "\n\n".join(parts) + "\n"


def write_report(results: dict[str, Section], folder: Path) -> None:
    """Write results.json and RESULTS.md."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "results.json").write_text(json.dumps(results, indent=1) + "\n")
    (folder / "RESULTS.md").write_text(f"{HEAD}\n\n{text_report(results)}")
