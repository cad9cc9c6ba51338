"""What `explain` and `doctor` print: lines that fit, evidence told once, fixes that setup knows."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from flatout.cli.render import show_doctor
from flatout.cli.render.machine_rows import machine_rows
from flatout.doctor.explain import explain, explain_text
from flatout.doctor.model.diagnosis import Diagnosis
from flatout.schema.finding import Evidence, Finding, Fix
from flatout.schema.machine import Cpu, Machine
from flatout.schema.tuning import Load
from flatout.system import load
from flatout.system.load import LoadWatch

LONG = (
    "a line that says what was wrong in so many words that it is longer than any terminal is wide"
)
NEW_CARD = (
    "NVIDIA GeForce RTX 5080 with CUDA capability sm_120 is not compatible with the current "
    "PyTorch installation.\n"
)


class Terminal(io.StringIO):
    """Text that is taken for a terminal."""

    def isatty(self) -> bool:
        """It is one."""
        return True


def printed(monkeypatch: pytest.MonkeyPatch, diagnosis: Diagnosis) -> list[str]:
    """The lines of an explanation on a terminal of 80 columns."""
    file = Terminal()
    console = Console(file=file, width=80, color_system=None, highlight=False, markup=False)
    monkeypatch.setattr(show_doctor, "make_console", lambda **_: console)
    show_doctor.print_explanation(diagnosis)
    return file.getvalue().splitlines()


def finding(rule: str, *where: str, **facts: object) -> Finding:
    evidence = tuple(Evidence(text=LONG, where=one) for one in where)
    return Finding(rule=rule, severity="error", problem=LONG, evidence=evidence, **facts)  # type: ignore[arg-type]


def test_explanation_hangs_its_lines_and_breaks_no_command(monkeypatch: pytest.MonkeyPatch) -> None:
    command = "python -m pip install " + "a-package-with-a-long-name " * 4
    fix = Fix(text=LONG, commands=(command,))
    lines = printed(
        monkeypatch, Diagnosis(findings=(finding("one", "line 8", because=LONG, fixes=(fix,)),))
    )
    long = [line for line in lines if len(line) > 80]
    assert [line.strip() for line in long] == [command.strip()]
    assert [line for line in lines if line.startswith("    line 8     a line that says")]
    # What goes on stands below its beginning, not below its label.
    assert [line for line in lines if line.startswith(" " * 15) and line[15] != " "]


def test_evidence_is_reported_once_when_two_causes_share_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = Diagnosis(findings=(finding("one", "line 8"), finding("two", "line 8", "line 9")))
    lines = printed(monkeypatch, found)
    assert sum(line.startswith("    line 8     a line") for line in lines) == 1
    assert "    line 8     as above" in lines
    assert sum(line.startswith("    line 9     a line") for line in lines) == 1


def test_lines_of_long_logs_are_not_taken_for_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = printed(monkeypatch, Diagnosis(findings=(finding("one", "line 1500001"),)))
    assert not [line for line in lines if line.strip().startswith("here")]
    assert [line for line in lines if line.startswith("    line 1500001  a line")]


def test_explanation_says_what_was_read_when_there_is_no_cause(
    monkeypatch: pytest.MonkeyPatch, tmp_path: object
) -> None:
    empty = str(tmp_path) + "/empty.log"
    open(empty, "w").close()
    found = explain(empty)
    assert isinstance(found, Diagnosis)
    lines = printed(monkeypatch, found)
    assert "".join(lines).endswith("empty.log is empty: there is nothing to explain.")


@pytest.mark.parametrize(
    ("before", "named", "not_named"),
    [
        # The driver is not told: what setup takes for a new one, and for an older one.
        ("", ("cu130", "cu128"), ("cu126",)),
        ("Driver Version: 570.124.06\n", ("cu128",), ("cu126", "cu130")),
        ("Driver Version: 581.42\n", ("cu130",), ("cu126", "cu128")),
    ],
    ids=["driver not told", "570", "581"],
)
def test_new_card_is_given_the_builds_that_setup_would_take(
    before: str, named: tuple[str, ...], not_named: tuple[str, ...]
) -> None:
    first = explain_text([(before + NEW_CARD).encode()]).findings[0]
    fix = first.fixes[0]
    assert first.rule == "gpu-arch-not-in-build" and "flatout setup torch" in fix.text
    text = " ".join((fix.text, *fix.commands))
    assert all(cuda in text for cuda in named)
    assert not any(cuda in text for cuda in not_named)


@pytest.mark.parametrize(
    ("other_cpus", "reported", "state"),
    [
        (None, "", "ok"),
        (0.05, "", "ok"),
        (0.6, " · other programs use 0.6 of 2 CPUs", "ok"),
        (1.6, " · other programs use 1.6 of 2 CPUs", "busy"),
    ],
)
def test_doctor_says_how_busy_other_programs_are(
    other_cpus: float | None, reported: str, state: str
) -> None:
    machine = Machine(cpu=Cpu(name="a CPU", num_threads=2), unread={"gpus": "no driver"})
    rows = {row.label: row for row in machine_rows(machine, other_cpus)}
    assert rows["CPU"].text == f"a CPU · 2 threads{reported}"
    assert rows["CPU"].state == state
    # That there is none is no praise.
    assert rows["GPU"].state == ""


def test_own_work_is_not_that_of_other_programs(monkeypatch: pytest.MonkeyPatch) -> None:
    busy = iter([100.0, 103.0])
    own = iter([10.0, 12.0])
    clock = iter([0.0, 1.0])
    monkeypatch.setattr(load, "_busy_s", lambda: next(busy))
    monkeypatch.setattr(load, "_own_s", lambda: next(own))
    monkeypatch.setattr(load, "elapsed_s", lambda: next(clock))
    monkeypatch.setattr(load.psutil, "cpu_count", lambda: 8)
    assert LoadWatch().load() == Load(other_cpus=1.0, num_cpus=8)
