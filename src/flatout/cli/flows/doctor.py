"""`flatout doctor` without --fix: probes the machine, checks it, shows the result."""

from __future__ import annotations

from flatout.cli.render import show, show_doctor
from flatout.doctor import api as doctor_api
from flatout.doctor.model.doctor_request import DoctorOptions, DoctorRequest


def report(request: DoctorRequest, manner: DoctorOptions) -> int:
    """Shows what is wrong with the machine; gives the exit code."""
    for option, value in {"--yes": manner.is_sure, "--dry-run": manner.is_dry}.items():
        if value:
            show.print_note(f"warning: {option} has no effect without --fix")
    examined = doctor_api.examine(request)
    diagnosis = examined.diagnosis
    if request.record:
        text = doctor_api.recording_text(examined.machine)
        is_beside = manner.is_json or manner.is_sarif
        show_doctor.print_recording(text, is_beside=is_beside)
        doctor_api.write_recording(text, request.record)
        written = f"written to {request.record}, nothing else"
        show.print_note(f"\n{written}; review it before you send it to anyone")
    if manner.is_sarif:
        show.print_json(doctor_api.as_sarif(diagnosis))
    elif manner.is_json:
        show.print_json(doctor_api.report(examined))
    elif not request.record:
        show_doctor.print_examined(examined, is_verbose=manner.is_verbose)
        if manner.is_verbose and not request.replayed:
            show_doctor.print_site(doctor_api.read_site())
    return int(manner.fails(diagnosis.findings))
