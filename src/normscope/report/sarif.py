"""Findings as SARIF 2.1.0, the format code scanners exchange."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

from normscope import __version__
from normscope.core.finding import Finding, Severity
from normscope.doctor.catalogue import RULES
from normscope.doctor.rule import Rule
from normscope.doctor.run import CheckResult

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_LEVELS = {Severity.INFO: "note", Severity.WARNING: "warning", Severity.ERROR: "error"}


@dataclass(frozen=True)
class SourceLocation:
    """The file and line of the source code of a model."""

    file: str  #: path of the file, with forward slashes
    line: int = 1  #: line of the factory, from one


def sarif(result: CheckResult, source: SourceLocation | None = None) -> dict[str, Any]:
    """Return a check as a SARIF log: one run, the rules that ran, one result for each finding.

    >>> sarif(CheckResult("net", ()))["version"]
    '2.1.0'
    """
    codes = [code for code in RULES if code in result.ran or any(f.code == code for f in result.findings)]
    driver = {
        "name": "normscope",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_rule(RULES[code]) for code in codes],
    }
    run: dict[str, Any] = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "results": [_result(f, codes.index(f.code), source) for f in result.findings],
        "properties": {"model": result.model, "purpose": result.purpose, "skipped": dict(result.skipped)},
    }
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [run]}


def sarif_text(result: CheckResult, source: SourceLocation | None = None) -> str:
    """Return the SARIF log as JSON text."""
    return json.dumps(sarif(result, source), indent=1, allow_nan=False)


def _rule(rule: Rule) -> dict[str, Any]:
    return {
        "id": rule.code,
        "name": "".join(part.capitalize() for part in rule.name.split("-")),
        "shortDescription": {"text": rule.title},
        "fullDescription": {"text": rule.why},
        "help": {"text": f"{rule.why} Fix: {rule.fix}."},
        "defaultConfiguration": {"level": _LEVELS[rule.severity]},
        "properties": {"certainty": rule.certainty.value, "statement": rule.statement},
    }


def _result(finding: Finding, index: int, source: SourceLocation | None) -> dict[str, Any]:
    places = [{"fullyQualifiedName": place or "model", "kind": "module"} for place in finding.everywhere]
    location: dict[str, Any] = {"logicalLocations": places}
    if source is not None:
        location["physicalLocation"] = {
            "artifactLocation": {"uri": quote(source.file)},
            "region": {"startLine": source.line},
        }
    plain = finding.to_dict()
    mark = hashlib.sha256("\0".join(finding.key).encode()).hexdigest()[:32]
    return {
        "ruleId": finding.code,
        "ruleIndex": index,
        "level": _LEVELS[finding.severity],
        "message": {"text": f"{finding.place or 'model'}: {finding.message}"},
        "locations": [location],
        "partialFingerprints": {"normscopePlace/v1": mark},
        "properties": {
            k: plain[k] for k in ("certainty", "cause", "effect", "statement", "fix", "evidence", "explains")
        },
    }
