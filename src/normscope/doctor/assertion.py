"""``assert_healthy``: a check that raises, for tests and training loops."""

from typing import Any

import torch
from torch import nn

from normscope.core.finding import Finding
from normscope.doctor.run import CheckResult, check
from normscope.doctor.settings import Settings


class UnhealthyError(AssertionError):
    """A model has findings of at least the given severity.

    Attributes:
        result: what the check found.
    """

    def __init__(self, result: CheckResult, findings: list[Finding]) -> None:
        self.result = result
        lines = []
        for f in findings:
            head = f"{f.code} {f.severity.value} ({f.certainty.value}) {f.place or 'model'}"
            lines.append(f"{head}: {f.message}" + (f". Fix: {f.fix}" if f.fix else ""))
        super().__init__("\n".join(lines))


def assert_healthy(
    model: nn.Module,
    data: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    fail_on: str = "warning",
    **options: Any,
) -> CheckResult:
    """Check a model and raise if there is a finding of at least the given severity.

    Args:
        model: any PyTorch module.
        data: inputs as for ``check``.
        optimizer: its optimizer.
        fail_on: ``info``, ``warning``, ``error`` or ``never``.
        **options: further arguments of ``check``, such as ``purpose`` and ``ignore``.

    Returns:
        The result, with less severe findings.

    Raises:
        UnhealthyError: an ``AssertionError`` with one line for each finding.

    >>> assert_healthy(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4))).failed
    False
    """
    settings = Settings(fail_on=fail_on)
    result = check(model, data, optimizer, settings=settings, **options)
    if result.failed:
        raise UnhealthyError(result, [f for f in result.findings if settings.fails([f])])
    return result
