"""One measurement in a fresh process: ``python -m benchmarks.one '{"task": "analyze", ...}'`` prints JSON."""

from __future__ import annotations

import json
import re
import resource
import sys
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.large import NETWORKS, deep
from benchmarks.machine import Clock, use_one_thread
from normscope import analyze, check
from normscope.analysis.context import AnalysisRequest, prepare
from normscope.zoo import build, example_input


def network_and_batch(name: str, arguments: dict[str, Any], batch: int, length: int | None) -> tuple[Any, torch.Tensor]:
    """Return a network in evaluation mode and a random batch; token sequences of the given length."""
    if name in NETWORKS:
        return deep(name, arguments, batch)
    network: Any = build(name, **arguments).eval()
    generator = torch.Generator().manual_seed(1)
    if length is not None:
        return network, torch.randint(network.vocabulary, (batch, length), generator=generator)
    return network, example_input(name, batch, seed=1, **arguments)


def forward(name: str, arguments: dict[str, Any], batch: int, length: int | None, repeats: int) -> dict[str, Any]:
    """Return the times of forward passes, after one that is not timed."""
    network, inputs = network_and_batch(name, arguments, batch, length)
    spent = []
    with torch.inference_mode():
        network(inputs)
        for _ in range(repeats):
            start = Clock.now()
            network(inputs)
            spent.append(start.since())
    return {"cpu": [s.cpu for s in spent], "wall": [s.wall for s in spent]}


def whole(name: str, arguments: dict[str, Any], batch: int, length: int | None) -> dict[str, Any]:
    """Return the time of an analysis with default options, by stages, and the most memory it held."""
    network, inputs = network_and_batch(name, arguments, batch, length)
    before = _peak()
    marks: list[tuple[str, float]] = []
    start = Clock.now()
    result = analyze(network, inputs, progress=lambda text: marks.append((text, start.since().cpu)))
    spent = start.since()
    stages: dict[str, float] = {}
    for (text, begin), (_, end) in zip(marks, [*marks[1:], ("", spent.cpu)], strict=True):
        name_of_stage = _stage(text)
        stages[name_of_stage] = stages.get(name_of_stage, 0.0) + end - begin
    return {
        "cpu": spent.cpu,
        "wall": spent.wall,
        "memory_mib": _peak(),
        "import_mib": before,
        "announced_mib": max(_announced(text) for text, _ in marks),
        "stages": dict(sorted(stages.items(), key=lambda item: -item[1])),
        "log10_global": _log10(result.end_to_end["global"]),
        "log10_floor": _log10(result.end_to_end["variance_floor"]),
        "log10_lower": _log10(result.end_to_end["lower"]),
    }


def _announced(text: str) -> float:
    """Return the peak that a line of progress announces, in MiB; zero for other lines."""
    found = re.search(r"peak memory about ([\d.]+) (GB|MB)", text)
    return 0.0 if found is None else float(found[1]) * {"GB": 1e9, "MB": 1e6}[found[2]] / 2**20


def _log10(value: Any) -> float | None:
    """Return the decimal logarithm of a value, or None."""
    return None if value is None else value.log10


def _stage(text: str) -> str:
    """Return the stage of a line of progress: what stands before names and numbers."""
    if text.startswith(("norms of layers", "convolution ", "segment of ", "matrix ")):
        return "norms"
    if text.startswith(("Jacobian", "ascent", "lower bounds", "search")):
        return "lower bounds"
    return text.split(":")[0]


def _peak() -> float:
    """Return the most memory this process held so far, in MiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (2**20 if sys.platform == "darwin" else 2**10)


def _timed(name: str, arguments: dict[str, Any], length: int | None, task: Callable[..., Any]) -> dict[str, Any]:
    """Return the time of a task on a batch of two, torch and its export loaded before."""
    from torch.export import _trace  # noqa: F401  # what export imports when it is first used belongs to loading torch

    network, inputs = network_and_batch(name, arguments, 2, length)
    start = Clock.now()
    task(network, inputs)
    spent = start.since()
    return {"cpu": spent.cpu, "wall": spent.wall}


def first_look(name: str, arguments: dict[str, Any], length: int | None) -> dict[str, Any]:
    """Return the time to the first verdict of the command line: the doctor's quick rules, and a first look."""

    def verdict(network: Any, inputs: torch.Tensor) -> None:
        prepared = prepare(AnalysisRequest(network, inputs))
        check(network, inputs, prepared=prepared, quick=True)
        analyze(network, inputs, fast=True, prepared=prepared)

    return _timed(name, arguments, length, verdict)


def checked(name: str, arguments: dict[str, Any], length: int | None) -> dict[str, Any]:
    """Return the time of a check by the doctor."""
    return _timed(name, arguments, length, check)


def summarized(name: str, arguments: dict[str, Any], length: int | None) -> dict[str, Any]:
    """Return the time of torchinfo's summary, which runs the network once and counts; nothing without it."""
    try:
        from torchinfo import summary
    except ImportError:
        return {}
    return _timed(name, arguments, length, lambda network, inputs: summary(network, input_data=inputs, verbose=0))


#: What can be asked for.
TASKS: dict[str, Callable[..., dict[str, Any]]] = {
    "forward": forward,
    "analyze": whole,
    "first look": first_look,
    "check": checked,
    "torchinfo": summarized,
}


def main() -> None:
    """Read the task from the command line, print the answer."""
    use_one_thread()
    task = json.loads(sys.argv[1])
    print(json.dumps(TASKS[task.pop("task")](**task)))


if __name__ == "__main__":
    main()
