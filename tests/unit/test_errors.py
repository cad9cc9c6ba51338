"""The error tree, and the nearest right name."""

from __future__ import annotations

import pytest

from flatout.errors import FlatoutError, RunFailed, UsageError, nearest
from flatout.nouns.finding import finding_from


@pytest.mark.parametrize(("kind", "exit_code"), [(UsageError, 2), (RunFailed, 1)])
def test_error_when_raised(kind: type[FlatoutError], exit_code: int) -> None:
    error = kind("some-rule", "it is wrong.", because="of that", fix="do this")
    assert (
        str(error)
        == "it is wrong.\n  because: of that\n  fix: do this\n  see: flatout explain some-rule"
    )
    assert error.exit_code == exit_code
    finding = finding_from(error)
    assert (finding.rule, finding.severity, finding.because) == ("some-rule", "error", "of that")
    assert finding.fixes[0].text == "do this"


@pytest.mark.parametrize(
    ("wrong", "right", "told"),
    [
        ("precison", ["precision", "device"], "did you mean `precision`? (all: device, precision)"),
        ("zzz", ["precision", "device"], "use one of: device, precision"),
        ("zzz", [], "there are none to choose from"),
    ],
)
def test_nearest_when(wrong: str, right: list[str], told: str) -> None:
    assert nearest(wrong, right) == told
