"""The verbs of the doctor, one short function each: the second page of `flow.py`."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any

import msgspec

from flatout import __version__
from flatout.doctor.diagnose import case_from_machine, diagnose
from flatout.doctor.families import FAMILIES, RULES
from flatout.doctor.forbidding import without_forbidden
from flatout.doctor.planning import with_plans
from flatout.doctor.redaction import redacted
from flatout.doctor.sarif import sarif
from flatout.doctor.shown_text import shown_to_others
from flatout.errors import UsageError
from flatout.nouns.diagnosis import Diagnosis
from flatout.nouns.doctor_request import DoctorRequest
from flatout.nouns.examined import Examined
from flatout.nouns.machine import Machine
from flatout.nouns.site import Site
from flatout.probes.examination import examine as examine_machine
from flatout.system import site_file, texts
from flatout.system.environments import find_interpreter
from flatout.system.load import LoadWatch
from flatout.system.made_environments import asked_python
from flatout.system.system import LocalSystem

# Of recordings: what their fields mean.
_VERSION = 1


class Recording(msgspec.Struct, frozen=True, kw_only=True):
    """A machine as somebody sends it. source: where its facts come from, in one that is a test."""

    recording_version: int
    machine: Machine
    source: str | None = None


def examine(request: DoctorRequest) -> Examined:
    """Reads this machine, or a recording of one, and names what is wrong.

    Raises:
        UsageError: python-not-found, not-a-recording, site-file-wrong.
    """
    if request.replayed:
        given = {"--python": request.python, "--env": request.env, "--deep": request.is_deep}
        warnings = tuple(
            f"{option} has no effect with --from: this machine is not looked at"
            for option, value in given.items()
            if value
        )
        return msgspec.structs.replace(replay(Path(request.replayed)), warnings=warnings)
    interpreter = find_interpreter(asked_python(request.python, request.env))
    system, watch = LocalSystem(), LoadWatch()
    examination = examine_machine(system, interpreter, is_deep=request.is_deep)
    examined = judge(examination.machine, examination.said)
    named = map(system.environment.get, ("SUDO_USER", "USER", "LOGNAME"))
    user = next(filter(None, named), "")
    site = read_site()
    planned = with_plans(examined.diagnosis, examined.machine, user)
    allowed = without_forbidden(planned, site.forbidden.rules, site.refusal)
    load = watch.load()
    other_cpus = load.other_cpus if load is not None else None
    return msgspec.structs.replace(examined, diagnosis=allowed, other_cpus=other_cpus)


def read_site() -> Site:
    """What is settled for all users of this machine.

    Raises:
        UsageError: site-file-wrong.
    """
    site = site_file.read_site()
    known = [rule.id for rule in RULES]
    for one in site.forbidden.rules:
        if one not in known:
            because = f"forbidden.rules: there is no rule `{one}`; {_near(one, known)}"
            raise site_file.wrong(site.file or "", because)
    return site


def judge(machine: Machine, said: str = "") -> Examined:
    """Names what is wrong with a machine that was read. said: by its programs, of the GPU."""
    diagnosis = diagnose(case_from_machine(machine, RULES, said), RULES)
    found = {one.rule for one in diagnosis.findings}
    families = {
        rule.id: family for family, rules in FAMILIES.items() for rule in rules if rule.id in found
    }
    return Examined(machine=machine, diagnosis=diagnosis, families=families)


def _near(wrong: str, known: list[str]) -> str:
    # Not `nearest`, which would name two hundred.
    near = difflib.get_close_matches(wrong, known, n=1)
    return f"did you mean `{near[0]}`?" if near else "`flatout explain ID` shows those that are"


def report(examined: Examined) -> dict[str, Any]:
    """All of it for programs, as far as others may see it: it is what people send."""
    shown = shown_to_others(examined.diagnosis, RULES)
    return {
        "report_version": 1,
        "machine": redacted(examined.machine),
        "findings": shown.findings,
        "undecided": shown.undecided,
    }


def as_sarif(diagnosis: Diagnosis) -> dict[str, Any]:
    """The findings as SARIF."""
    return sarif(shown_to_others(diagnosis, RULES).findings, __version__)


def recording_text(machine: Machine) -> str:
    """What of a machine may be sent to others, as the text of a recording."""
    recording = Recording(recording_version=_VERSION, machine=redacted(machine))
    return msgspec.json.format(msgspec.json.encode(recording), indent=1).decode() + "\n"


def write_recording(text: str, file: str) -> None:
    """Writes a recording, where there is no file yet.

    Raises:
        UsageError: recording-exists.
    """
    if not texts.write_new(Path(file), text):
        raise UsageError("recording-exists", f"{file} is there already.", fix="choose another name")


def replay(file: Path) -> Examined:
    """Judges the machine of a recording; this one is not looked at.

    Raises:
        UsageError: not-a-recording.
    """
    text = b"".join(texts.pieces_of(file))
    try:
        recording = msgspec.json.decode(text, type=Recording)
        if recording.recording_version != _VERSION:
            raise msgspec.ValidationError(
                f"its version is {recording.recording_version}, and this flatout reads {_VERSION}"
            )
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(
            "not-a-recording",
            f"{file} is no recording of a machine.",
            because=str(error),
            fix="flatout doctor --record FILE, on the machine in question",
        ) from error
    return judge(recording.machine)
