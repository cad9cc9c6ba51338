"""What of a line of text others may see: only what flatout's own rules speak of."""

from __future__ import annotations

import pytest

from flatout.doctor.api import as_sarif, report
from flatout.doctor.explain import as_shown, explain_text
from flatout.doctor.model.diagnosis import Diagnosis, Examined
from flatout.doctor.redact_text import RedactedText
from flatout.doctor.ruleset import shipped_rules
from flatout.schema.finding import Evidence, Finding
from flatout.schema.machine import Machine

RULESET = shipped_rules()

SHOWN = RedactedText(RULESET.rules)
SECRETS = (
    "adalove", "lovelace-laptop", "/home/ada/secret-project/train.py", r"C:\Users\Ada Lovelace\x",
    "http://10.0.0.7:8080", "registry.example.com/ada/image", "10.0.0.7", "0320517034821",
    "GPU-5b1f0000-1111-2222-3333-444455556666", "ada@lovelace.example", "José", "李雷",
    "CUDAlovelace", "cudaadalovelace", "WSLLovelace", "LovelaceError", "libcuadalove.so.1",
    "NCCL_ADALOVELACE", "123456789", "4111 1111 1111 1111", "4111-1111-1111-1111",
    "+49 30 1234 5678",
    "https://ada:token@pypi.example.com/simple", "00:1b:44:11:3a:b7", "fe80::1ff:fe23:4567:890a",
    "ghp_16C7e42F292c6912E7710c838347Ae178B4a", "secret_project", "acme-torch==2.1",
)  # fmt: skip
FRAMES = (
    "{}", "RuntimeError: {}", "driver {} is too old", "error at {}: CUDA error", "({})", "'{}'",
    "name={}", "{}, out of memory", "CUDA_HOME={}", "user {} on {}", "{}:29500", "file://{}",
)  # fmt: skip


def parts(secret: str) -> list[str]:
    """What of a secret would tell something: itself, and its words that are no common ones."""
    return [secret, *(one for one in ("ada", "Ada", "Lovelace", "lovelace") if one in secret)]


@pytest.mark.parametrize("secret", SECRETS)
def test_nothing_secret_is_in_a_line_however_it_stands(secret: str) -> None:
    for frame in FRAMES:
        shown = SHOWN.line(frame.format(secret, secret))
        assert [one for one in parts(secret) if one in shown] == [], shown


@pytest.mark.parametrize("secret", SECRETS)
def test_reports_and_checks_hide_it_in_evidence(secret: str) -> None:
    finding = Finding(
        rule="disk-full", severity="error", problem="A disk is full.",
        evidence=(Evidence(text=f"cannot write {secret}", where="line 1"), f"error at {secret}"),
    )  # fmt: skip
    found = Diagnosis(findings=(finding,))
    name = "python" if secret[0].isdigit() else secret
    reported = str(report(Examined(machine=Machine(python=f"/{name}/python"), diagnosis=found)))
    for text in (reported, str(as_sarif(found)), str(as_shown(found))):
        assert [one for one in parts(secret) if one in text] == []


@pytest.mark.parametrize(
    "line",
    [
        "RuntimeError: CUDA error: no kernel image is available for execution on the device",
        "Failed to initialize NVML: Driver/library version mismatch",
        "torch 2.9.1+cu130 is built for the CPU",
        "driver 535.183.01",
        "/dev/shm has 64.0 MiB",
    ],
)
def test_what_programs_print_stays_readable(line: str) -> None:
    assert SHOWN.line(line) == line


def test_cause_is_the_same_and_its_line_is_shown() -> None:
    text = b"/home/ada/x.py:3 Failed to initialize NVML: Driver/library version mismatch\n"
    found = as_shown(explain_text([text])).findings[0]
    assert found.rule == "driver-library-version-mismatch"
    assert "NVML: Driver/library version mismatch" in str(found.evidence[0])
    assert "ada" not in str(found.evidence)
