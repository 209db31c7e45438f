"""SARIF logs: they fit the schema (the part that is written here, by hand after the specification)."""

from __future__ import annotations

import json
import math
from pathlib import Path

import jsonschema
import pytest

from normscope.core.finding import Finding, Severity
from normscope.doctor.run import CheckResult
from normscope.report.sarif import SourceLocation, sarif, sarif_text

SCHEMA = json.loads((Path(__file__).parent / "sarif_subset.schema.json").read_text())
FINDINGS = (
    Finding("NS204", Severity.ERROR, "bn", "left in train mode"),
    Finding("NS101", Severity.WARNING, "conv.0", "has no effect", {"entries": 3, "x": math.inf}, fix="drop it"),
    Finding("NS003", Severity.INFO, "", "not understood"),
)
RESULT = CheckResult(
    "net.py:build", FINDINGS, ("NS003", "NS101", "NS204", "NS301"), {"NS203": "needs data"}, failed=True
)


def test_the_log_fits_the_schema() -> None:
    """With and without a source file, with and without findings; a spoiled one does not."""
    validator = jsonschema.Draft7Validator(SCHEMA)
    for document in (sarif(RESULT), sarif(RESULT, SourceLocation("a b/net.py", 7)), sarif(CheckResult("m", ()))):
        validator.validate(json.loads(json.dumps(document, allow_nan=False)))
    spoiled = sarif(RESULT)
    spoiled["runs"][0]["results"][0]["level"] = "fatal"
    with pytest.raises(jsonschema.ValidationError):
        validator.validate(spoiled)


def test_rules_results_and_places() -> None:
    """Each result points at its rule; severities become levels."""
    run = json.loads(sarif_text(RESULT, SourceLocation("net.py", 7)))["runs"][0]
    rules = run["tool"]["driver"]["rules"]
    assert [r["id"] for r in rules] == ["NS003", "NS101", "NS204", "NS301"]
    assert [rules[r["ruleIndex"]]["id"] for r in run["results"]] == [r["ruleId"] for r in run["results"]]
    assert [r["level"] for r in run["results"]] == ["error", "warning", "note"]
    location = run["results"][1]["locations"][0]
    assert location["physicalLocation"]["region"]["startLine"] == 7
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "conv.0"
    marks = {r["partialFingerprints"]["normscopePlace/v1"] for r in run["results"]}
    assert len(marks) == 3


def test_a_path_becomes_a_uri() -> None:
    """Blanks are escaped."""
    run = sarif(RESULT, SourceLocation("a b/net.py"))["runs"][0]
    assert run["results"][0]["locations"][0]["physicalLocation"]["artifactLocation"]["uri"] == "a%20b/net.py"
