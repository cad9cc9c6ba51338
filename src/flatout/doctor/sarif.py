"""Findings as SARIF 2.1.0, which code hosts and editors display.

Source: https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flatout.schema.finding import Finding

_SCHEMA = (
    "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
)


def sarif(findings: Sequence[Finding], version: str) -> dict[str, Any]:
    """One run with a result per finding; its location is the machine, since it has no lines."""
    rules = list(dict.fromkeys(finding.rule for finding in findings))
    problems = {finding.rule: finding.problem for finding in reversed(findings)}
    return {
        "version": "2.1.0",
        "$schema": _SCHEMA,
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "flatout",
                        "version": version,
                        "rules": [
                            {"id": rule, "shortDescription": {"text": problems[rule]}}
                            for rule in rules
                        ],
                    }
                },
                "results": [_result(finding, rules.index(finding.rule)) for finding in findings],
            }
        ],
    }


def _result(finding: Finding, index: int) -> dict[str, Any]:
    lines = [finding.problem, *([f"because: {finding.because}"] if finding.because else [])]
    lines += [str(evidence) for evidence in finding.evidence]
    lines += [f"fix: {fix.text}" for fix in finding.fixes]
    return {
        "ruleId": finding.rule,
        "ruleIndex": index,
        "level": finding.severity,
        "message": {"text": "\n".join(lines)},
        "locations": [{"logicalLocations": [{"name": "machine", "kind": "resource"}]}],
        "properties": {"certainty": finding.certainty},
    }
