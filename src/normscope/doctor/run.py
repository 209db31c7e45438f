"""``check`` applies the rules to a model; ``assert_healthy`` raises if there are findings, for tests and training."""

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn

from normscope.analysis.context import PreparedModel
from normscope.core.display import Shown
from normscope.core.errors import InputError
from normscope.core.files import Saved
from normscope.core.finding import FINDINGS_VERSION, Finding, Severity, grouped, order
from normscope.doctor.catalogue import RULES
from normscope.doctor.run_history import RunHistory
from normscope.doctor.settings import Settings
from normscope.doctor.subject import Progress, Subject, examine
from normscope.graph.guard import untouched
from normscope.graph.wrappers import require_module, require_optimizer_of


@dataclass(frozen=True, repr=False)
class CheckResult(Saved, Shown):
    """The result of a check.

    Attributes:
        model: name of the model.
        findings: the findings, most severe first.
        ran: codes of the rules that ran.
        skipped: codes of the rules that could not run, and why.
        hidden: number of findings that are ignored at their place or are in the baseline.
        failed: whether the check fails, according to its settings.
        purpose: what the model is used for, if given.
    """

    _layout = ("normscope.report.findings", "check_sections")
    _rows = "findings"

    model: str
    findings: tuple[Finding, ...]
    ran: tuple[str, ...] = ()
    skipped: dict[str, str] = field(default_factory=dict)
    hidden: int = 0
    failed: bool = False
    purpose: str = ""

    def count(self, severity: Severity) -> int:
        """Return how many findings have a severity."""
        return sum(f.severity is severity for f in self.findings)

    def to_dict(self) -> dict[str, Any]:
        """Return the JSON form, described by ``docs/findings.schema.json``."""
        from normscope import __version__

        return {
            "schema_version": FINDINGS_VERSION,
            "kind": "findings",
            "normscope": __version__,
            "model": self.model,
            "purpose": self.purpose,
            "failed": self.failed,
            "counts": {s.value: self.count(s) for s in Severity},
            "findings": [f.to_dict() for f in self.findings],
            "ran": list(self.ran),
            "skipped": dict(self.skipped),
            "hidden": self.hidden,
        }


def check(
    model: nn.Module,
    data: Any = None,
    optimizer: torch.optim.Optimizer | None = None,
    *,
    select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    settings: Settings | None = None,
    name: str = "",
    input_shape: tuple[int, ...] | None = None,
    batch_size: int | None = None,
    dtype: torch.dtype | None = None,
    purpose: str = "",
    before: nn.Module | None = None,
    limit: int | None = None,
    device: str | torch.device | None = None,
    seed: int = 0,
    progress: Progress | None = None,
    tell: Callable[[Finding], None] | None = None,
    group: bool = True,
    prepared: PreparedModel | None = None,
    quick: bool = False,
) -> CheckResult:
    """Find problems with the normalization of a network; the model is not changed.

    Args:
        model: any PyTorch module, also compiled or wrapped for several devices.
        data: inputs as for ``analyze``; without them, rules that need data are skipped and listed.
        optimizer: its optimizer, for rules about weight decay.
        select: codes, or prefixes of codes, to run; all if empty.
        ignore: codes, or prefixes of codes, to skip.
        settings: all settings, e.g. those of ``pyproject.toml``; ``select`` and ``ignore`` are added to them.
        name: name of the model in the result.
        input_shape: shape of one input without batch axis, if there is no data and it cannot be guessed.
        batch_size: size of one forward pass in training; by default that of a DataLoader passed as data.
        dtype: the precision the model will run in, if other than its own.
        purpose: what the model is used for: ``train``, ``inference``, ``finetune``, ``private``, ``contrastive`` or
            ``gan``; rules that depend on it do not run without it.
        before: an earlier version of the same model, to find what has changed since.
        limit: use at most this many samples of the data; by default 512, fewer for a large network.
        device: the device to run on; by default that of the model.
        seed: random seed.
        progress: called with a line of text at each stage.
        tell: called with every finding as soon as it is made, cheap rules first; the result orders and groups findings,
            and leaves out those that another one explains.
        group: combine findings of one rule and severity into one, at the first of their places.
        prepared: the captured model, if it was captured before.
        quick: check only the structure of the network: data is not read, and slow rules do not run.

    Returns:
        The findings, most severe first.

    Raises:
        NormscopeError: a subclass, if an argument is invalid.

    >>> result = check(nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)), input_shape=(3, 8, 8))
    >>> [(f.code, f.place) for f in result.findings]
    [('NS101', '0')]
    """
    settings = _combined_settings(settings, select, ignore)
    require_module(model)
    if optimizer is not None and not hasattr(optimizer, "param_groups"):
        raise InputError(
            f"Expected a torch optimizer, got {type(optimizer).__name__}. Build it with the model's parameters."
        )
    require_optimizer_of(model, [] if optimizer is None else [optimizer])
    if quick:
        slow = tuple(code for code, rule in RULES.items() if rule.slow)
        data, settings = None, replace(settings, ignore=(*settings.ignore, *slow))
    report = _Reporter(tell, settings)
    with untouched(model, parameters=not quick):  # quick rules that run the model guard it themselves
        subject = examine(
            model, data, optimizer=optimizer, input_shape=input_shape, batch_size=batch_size, dtype=dtype,
            purpose=purpose, before=before, limit=limit, device=device, seed=seed, progress=progress, prepared=prepared,
            first=None if tell is None else report.early,
        )  # fmt: skip
        found, ran, skipped = _run_rules(subject, settings, progress or (lambda text: None), report)
    result = _result_of(found, settings, group=group)
    return replace(result, model=name or type(model).__name__, ran=ran, skipped=skipped, purpose=purpose)


def check_history(
    history: RunHistory, *, settings: Settings | None = None, select: str | Iterable[str] = (),
    ignore: str | Iterable[str] = (),
    name: str = "",
) -> CheckResult:  # fmt: skip
    """Run the rules that apply to training runs; arguments are those of :func:`check`.

    >>> run = RunHistory({"drift/bn": ([10, 20, 30], [4.0, 4.0, 4.0])}, samples=64)
    >>> [(f.code, f.place) for f in check_history(run).findings]
    [('NS203', 'bn')]
    """
    settings = _combined_settings(settings, select, ignore)
    rules = {code: rule for code, rule in RULES.items() if rule.check_history is not None and settings.runs(code)}
    found = [finding for rule in rules.values() if rule.check_history for finding in rule.check_history(rule, history)]
    return replace(_result_of(found, settings), model=name, ran=tuple(rules), purpose="train")


def _combined_settings(settings: Settings | None, select: str | Iterable[str], ignore: str | Iterable[str]) -> Settings:
    found = settings or Settings()
    select, ignore = ((codes,) if isinstance(codes, str) else codes for codes in (select, ignore))
    return replace(found, select=(*found.select, *select), ignore=(*found.ignore, *ignore)).checked(RULES)


def _result_of(found: Iterable[Finding], settings: Settings, *, group: bool = True) -> CheckResult:
    """Return the result for some findings: one per cause, without hidden ones, in order."""
    causes = one_per_cause(found)
    kept = [f for f in causes if not settings.hides(f)]
    hidden = [f for f in causes if settings.hides(f)]
    shown = order(grouped(order(kept)) if group else kept)
    count = len(grouped(order(hidden)) if group else hidden)
    return CheckResult("", tuple(shown), hidden=count, failed=settings.fails(kept))


class _Reporter:
    """Passes findings on as they are made, each once, without hidden ones."""

    def __init__(self, tell: Callable[[Finding], None] | None, settings: Settings) -> None:
        self._tell, self._settings = tell, settings
        self._told: set[tuple[str, ...]] = set()

    def __call__(self, finding: Finding) -> None:
        """Pass a finding on."""
        key = (*finding.key, finding.message)
        if self._tell is not None and key not in self._told and not self._settings.hides(finding):
            self._told.add(key)
            self._tell(finding)

    def early(self, subject: Subject) -> None:
        """Run the rules that need only the modules, before the graph is captured."""
        for code, rule in RULES.items():
            if not rule.needs and self._settings.runs(code) and subject.purpose not in rule.not_for:
                with contextlib.suppress(Exception):  # it runs again later, and then reports its failure
                    for finding in rule.run(subject):
                        self(finding)


def one_per_cause(findings: Iterable[Finding]) -> list[Finding]:
    """Return findings without those that another one at the same place explains, which lists them.

    >>> cause = Finding("NS210", Severity.ERROR, "bn", "a variance is negative")
    >>> (one,) = one_per_cause([cause, Finding("NS301", Severity.WARNING, "bn", "a variance is near eps")])
    >>> one.code, one.explains
    ('NS210', ('NS301',))
    """
    found = list(findings)
    gone: set[int] = set()
    named = []
    for cause in found:
        effects = [f for f in found if f.code in RULES[cause.code].explains and _concerns(cause, f)]
        gone.update(map(id, effects))
        named.append(tuple(sorted({f.code for f in effects})))
    return [replace(f, explains=codes) for f, codes in zip(found, named, strict=True) if id(f) not in gone]


def _concerns(cause: Finding, other: Finding) -> bool:
    """Return whether a cause is at or inside the place of another finding, or is an error, whose effects spread."""
    inside = any(p == q or p.startswith(f"{q}.") for p in cause.everywhere for q in other.everywhere)
    return inside or cause.severity is Severity.ERROR


def _run_rules(
    subject: Subject, settings: Settings, say: Progress, tell: Callable[[Finding], None]
) -> tuple[list[Finding], tuple[str, ...], dict[str, str]]:
    """Run the selected rules on a subject, and pass on each finding as it is made.

    Returns:
        The findings without duplicates, the codes of the rules that ran, and of those that could not, with the reason.
    """
    found: dict[tuple[str, str, str], Finding] = {}
    ran: list[str] = []
    skipped: dict[str, str] = {}
    chosen = (r for code, r in RULES.items() if settings.runs(code) and subject.purpose not in r.not_for)
    for rule in sorted(chosen, key=lambda r: (len(r.needs), r.code)):  # cheap rules first
        missing = rule.missing(subject)
        if missing:
            skipped[rule.code] = f"needs {' and '.join(missing)}"
            continue
        say(f"{rule.code} {rule.title}")
        try:
            new = rule.run(subject)
        except Exception as error:  # a rule that fails must not hide the others
            skipped[rule.code] = f"failed: {type(error).__name__}: {' '.join(str(error).split())[:200]}"
            continue
        ran.append(rule.code)
        for finding in new:
            found.setdefault((*finding.key, finding.message), finding)
            tell(finding)
    return list(found.values()), tuple(sorted(ran)), skipped


def counts_text(result: CheckResult) -> str:
    """Return the number of findings as text.

    >>> counts_text(CheckResult("m", ()))
    'no findings'
    """
    counts = {s: result.count(s) for s in reversed(Severity)}
    parts = [f"{n} {s.value}{'s' if n > 1 and s is not Severity.INFO else ''}" for s, n in counts.items() if n]
    return ", ".join(parts) or "no findings"


class UnhealthyError(AssertionError):
    """Raised if a model has findings of at least the given severity.

    Attributes:
        result: the result of the check.
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
        The result, which may have less severe findings.

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
