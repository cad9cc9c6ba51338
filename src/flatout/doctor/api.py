"""The doctor's actions behind `flatout doctor`: examine, report, record and replay."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any

import msgspec

from flatout import __version__
from flatout.doctor.diagnose import case_from_machine, diagnose
from flatout.doctor.fix.plan import with_plans
from flatout.doctor.model.diagnosis import Diagnosis, Examined
from flatout.doctor.model.doctor_request import DoctorRequest
from flatout.doctor.redact_text import shown_to_others
from flatout.doctor.redaction import redacted
from flatout.doctor.ruleset import all_rules, shipped_rules
from flatout.doctor.sarif import sarif
from flatout.errors import UsageError, nearest_name
from flatout.schema.finding import Fix
from flatout.schema.machine import Machine
from flatout.schema.site_policy import Site
from flatout.system import site_policy, text_input
from flatout.system.host_system import LocalSystem
from flatout.system.load import LoadWatch
from flatout.system.probes.examination import examine as examine_machine
from flatout.system.store.interpreters import resolve_interpreter

# Format version of recordings.
_VERSION = 1


class MachineRecording(msgspec.Struct, frozen=True, kw_only=True):
    """A machine that a user sends. source: where its facts come from, in a test case."""

    recording_version: int
    machine: Machine
    source: str | None = None


def examine(request: DoctorRequest) -> Examined:
    """Examines this machine or a recording, and names what is wrong.

    Raises:
        UsageError: python-not-found, not-a-recording, site-file-wrong.
    """
    if request.replayed:
        given = {"--python": request.python, "--env": request.env, "--deep": request.is_deep}
        warnings = tuple(
            f"{option} has no effect with --from: this machine is not examined"
            for option, value in given.items()
            if value
        )
        replayed = replay(Path(request.replayed))
        warnings = (*warnings, *replayed.warnings)
        return msgspec.structs.replace(replayed, warnings=warnings)
    interpreter = resolve_interpreter(request.python, request.env)
    system, watch = LocalSystem(), LoadWatch()
    examination = examine_machine(system, interpreter, is_deep=request.is_deep)
    examined = judge(examination.machine, examination.output)
    named = map(system.environment.get, ("SUDO_USER", "USER", "LOGNAME"))
    user = next(filter(None, named), "")
    site = read_site()
    planned = with_plans(examined.diagnosis, examined.machine, user)
    allowed = without_forbidden(planned, site.forbidden.rules, site.refusal)
    load = watch.load()
    other_cpus = load.other_cpus if load is not None else None
    return msgspec.structs.replace(examined, diagnosis=allowed, other_cpus=other_cpus)


def read_site() -> Site:
    """The settings for all users of this machine.

    Raises:
        UsageError: site-file-wrong.
    """
    site = site_policy.read_site()
    known = [rule.id for rule in all_rules().rules]
    for rule in site.forbidden.rules:
        if rule not in known:
            because = f"forbidden.rules: there is no rule `{rule}`; {_near(rule, known)}"
            raise site_policy.wrong(site.file or "", because)
    return site


def judge(machine: Machine, output: str = "") -> Examined:
    """Names what is wrong with a machine. output: what its programs printed about the GPU."""
    ruleset = all_rules()
    diagnosis = diagnose(case_from_machine(machine, ruleset, output), ruleset)
    rule_ids = {finding.rule for finding in diagnosis.findings}
    families = {rule.id: rule.family for rule in ruleset.rules if rule.id in rule_ids}
    return Examined(
        machine=machine, diagnosis=diagnosis, families=families, warnings=ruleset.warnings
    )


def _near(wrong: str, known: list[str]) -> str:
    # Not `nearest`, which would list all two hundred.
    near = nearest_name(wrong, known)
    return f"did you mean `{near}`?" if near else "a finding shows the id of its rule after `see`"


def report(examined: Examined) -> dict[str, Any]:
    """The result as JSON, limited to what may be shared, since users send it to others."""
    shown = shown_to_others(examined.diagnosis, shipped_rules().rules)
    return {
        "report_version": 1,
        "machine": redacted(examined.machine),
        "findings": shown.findings,
        "undecided": shown.undecided,
    }


def as_sarif(diagnosis: Diagnosis) -> dict[str, Any]:
    """The findings as SARIF."""
    return sarif(shown_to_others(diagnosis, shipped_rules().rules).findings, __version__)


def recording_text(machine: Machine) -> str:
    """The text of a recording, limited to what may be shared."""
    recording = MachineRecording(recording_version=_VERSION, machine=redacted(machine))
    return msgspec.json.format(msgspec.json.encode(recording), indent=1).decode() + "\n"


def write_recording(text: str, file: str) -> None:
    """Writes a recording to a new file.

    Raises:
        UsageError: recording-exists.
    """
    if not text_input.write_new(Path(file), text):
        raise UsageError("recording-exists", f"{file} already exists.", fix="choose another name")


def replay(file: Path) -> Examined:
    """Judges the machine of a recording, not this one.

    Raises:
        UsageError: not-a-recording.
    """
    text = b"".join(text_input.pieces_of(file))
    try:
        recording = msgspec.json.decode(text, type=MachineRecording)
        if recording.recording_version != _VERSION:
            raise msgspec.ValidationError(
                f"it has version {recording.recording_version}; this flatout reads {_VERSION}"
            )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            "not-a-recording",
            f"{file} is not a recording of a machine.",
            because=str(error),
            fix="flatout doctor --record FILE, on the machine in question",
        ) from error
    return judge(recording.machine)


def without_forbidden(diagnosis: Diagnosis, rules: Collection[str], refusal: str) -> Diagnosis:
    """The same findings; forbidden fixes become manual.

    Args:
        diagnosis: with plans.
        rules: rules whose fixes are forbidden.
        refusal: who forbids them, and why.
    """
    findings = tuple(
        msgspec.structs.replace(
            finding, fixes=tuple(_as_manual(fix, refusal) for fix in finding.fixes)
        )
        if finding.rule in rules
        else finding
        for finding in diagnosis.findings
    )
    return msgspec.structs.replace(diagnosis, findings=findings)


def _as_manual(fix: Fix, refusal: str) -> Fix:
    return msgspec.structs.replace(fix, text=f"{fix.text}; {refusal}", safety="manual", plan=None)
