"""Certified constants during a run, from ``analyze``."""

from normscope.core.result import Result
from normscope.core.value import ALL_INPUTS, Kind
from normscope.monitor.quantity import Chart, Description

#: The end-to-end constants of a result, by the metric that is their decimal logarithm.
END_TO_END = {
    "certified/global_log10": "global",
    "certified/floor_log10": "variance_floor",
    "certified/without_normalizers_log10": "without_normalizers",
    "certified/lower_log10": "lower",
}
CHARTS = (
    Chart("certified", "Bounds of the whole network, certified", "log", ("certified/*_log10",), 50, whole=True),
    Chart("certified-norm", "Norm of each layer, certified", "log", ("certified/norm_log10/*",), 80),
)
DESCRIPTIONS = (
    Description(
        "certified/norm_log10/*", Kind.CERTIFIED, "norm of a layer, upper bound", "normscope norm", domain=ALL_INPUTS
    ),
    Description(
        "certified/global_log10",
        Kind.CERTIFIED,
        "end-to-end constant on all inputs",
        "normscope F10",
        domain=ALL_INPUTS,
    ),
    Description(
        "certified/floor_log10",
        Kind.CERTIFIED,
        "end-to-end constant where standard deviations before normalizers stay above those of the probe",
        "normscope F10",
    ),
    Description(
        "certified/without_normalizers_log10",
        Kind.CERTIFIED,
        "end-to-end constant of the network with its normalizers removed",
        "normscope F10",
        domain=ALL_INPUTS,
    ),
    Description(
        "certified/lower_log10",
        Kind.LOWER,
        "attained value, on the same domain as certified/floor_log10",
        "normscope Jacobian",
    ),
)


def certified_metrics(result: Result) -> dict[str, float]:
    """Return the metrics of a certified analysis: decimal logarithms, rounded to the safe side."""
    found = {f"certified/norm_log10/{layer.name}": layer.upper.log10 for layer in result.layers}
    for name, key in END_TO_END.items():
        value = result.end_to_end.get(key)
        if value is not None:
            found[name] = value.log10
    return found
