"""`flatout doctor` without --fix: the machine read, judged, shown."""

from __future__ import annotations

from flatout import consult
from flatout.cli import show, show_doctor
from flatout.nouns.doctor_request import DoctorManner, DoctorRequest


def report(request: DoctorRequest, manner: DoctorManner) -> int:
    """Shows what is wrong with the machine; gives the exit code."""
    for option, value in {"--yes": manner.is_sure, "--dry-run": manner.is_dry}.items():
        if value:
            show.print_note(f"warning: {option} has no effect without --fix")
    examined = consult.examine(request)
    found = examined.diagnosis
    if request.record:
        text = consult.recording_text(examined.machine)
        is_beside = manner.is_json or manner.is_sarif
        show_doctor.print_recording(text, is_beside=is_beside)
        consult.write_recording(text, request.record)
        written = f"written to {request.record}: nothing else"
        show.print_note(f"\n{written}; read it before you send it to anybody")
    if manner.is_sarif:
        show.print_json(consult.as_sarif(found))
    elif manner.is_json:
        show.print_json(consult.report(examined))
    elif not request.record:
        show_doctor.print_examined(examined, is_verbose=manner.is_verbose)
        if manner.is_verbose and not request.replayed:
            show_doctor.print_site(consult.read_site())
    return int(manner.fails(found.findings))
