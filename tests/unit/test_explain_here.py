"""A text from this machine: what the machine is decides where the text does not."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.doctor import explain
from flatout.doctor.model.diagnosis import Diagnosis
from flatout.doctor.same_machine import is_elsewhere, merge_machines
from flatout.errors import UsageError
from flatout.schema.finding import Finding
from flatout.schema.framework import Framework
from flatout.schema.machine import Gpu, Host, Machine
from flatout.schema.run import Run
from flatout.schema.run_lines import Failed
from flatout.system.file_speed import measure
from flatout.system.host_system import RecordedSystem, SystemRecording
from flatout.system.probes.examination import GLANCE_S, examine, glance
from flatout.system.timeout_threads import begin

MACHINES = Path(__file__).parents[1] / "cases" / "machines"
HERE = Machine(
    host=Host(os="linux", release="6.8.0-79-generic"),
    driver="580.95.05",
    gpus=(Gpu(index=0, name="NVIDIA GeForce GTX 1080 Ti", compute_capability="6.1"),),
    frameworks=(Framework(name="torch", version="2.9.1+cu130", build="cu130"),),
)
OPEN_TEXT = b"Traceback (most recent call last):\n  x\nRuntimeError: CUDA error: unknown error\n"


def test_facts_of_the_machine_come_after_what_the_text_shows() -> None:
    alone = explain.explain_text([OPEN_TEXT]).findings
    found = explain.explain_text([OPEN_TEXT], lambda: HERE).findings
    assert "gpu-arch-not-in-build" not in [one.rule for one in alone]
    assert [one.rule for one in found][: len(alone)] == [one.rule for one in alone]
    added = next(one for one in found if one.rule == "gpu-arch-not-in-build")
    assert {getattr(one, "where", None) for one in added.evidence} == {"NVML", "metadata"}


def test_text_of_another_machine_is_left_to_itself() -> None:
    text = OPEN_TEXT + b"| NVIDIA-SMI 535.54.03  Driver Version: 535.54.03  CUDA Version: 12.2 |\n"
    assert explain.explain_text([text], lambda: HERE) == explain.explain_text([text])


@pytest.mark.parametrize(
    ("reported", "is_other"),
    [
        (Machine(), False),
        (Machine(driver="580.95"), False),
        (Machine(driver="535.54.03"), True),
        (Machine(gpus=(Gpu(index=0, name="GTX 1080 Ti"),)), False),
        (Machine(gpus=(Gpu(index=0, name="RTX 4090"),)), True),
        (Machine(host=Host(os="windows")), True),
        (Machine(host=Host(os="linux", wsl=2)), True),
        (Machine(host=Host(container="docker")), False),
    ],
)
def test_machine_is_another_when_a_fact_differs(reported: Machine, is_other: bool) -> None:
    assert is_elsewhere(reported, HERE) is is_other


def test_what_the_text_tells_wins() -> None:
    reported = Machine(cuda="12.4", frameworks=(Framework(name="torch", version="2.5.1"),))
    both = merge_machines(reported, HERE)
    assert (both.cuda, both.driver) == ("12.4", "580.95.05")
    assert [one.version for one in both.frameworks] == ["2.5.1"]


def test_glance_sees_what_matters_and_asks_no_slow_program() -> None:
    case = json.loads((MACHINES / "wsl2-rtx3060-spanish.json").read_text(encoding="utf-8"))
    system = RecordedSystem(msgspec.convert(case["recording"], SystemRecording))
    seen, whole = glance(system), examine(system).machine
    assert (seen.gpus, seen.driver, seen.frameworks) == (whole.gpus, whole.driver, whole.frameworks)
    assert seen.windows is seen.engines is None
    assert seen.unread["windows"]


def test_what_was_begun_gives_its_result_or_nothing_in_time() -> None:
    assert begin(lambda: 3, 5)() == 3
    assert begin(lambda: 1 / 0, 5)() is None
    is_over = threading.Event()
    assert begin(lambda: is_over.wait(60), 0.05)() is None
    is_over.set()


def test_speed_is_measured_and_nothing_is_left(tmp_path: Path) -> None:
    found = measure(str(tmp_path), limit_s=0.3)
    assert min(found.values()) > 0
    assert os.listdir(tmp_path) == []


def failed_run(tmp_path: Path, log: str) -> Run:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "worker.log").write_text(log, encoding="utf-8")
    header = json.dumps(
        {"id": "run", "created_at": 0.0, "flatout_version": "0", "python": "python",
         "spec": {"name": "x"}, "machine": {}}
    )  # fmt: skip
    fields = dict.fromkeys(
        ("recipe", "started", "finished", "checkpoint_step"), None
    )  # fmt: skip
    return msgspec.convert(
        {**fields, "folder": str(folder), "status": "failed", "step": 0, "validations": [],
         "findings": [], "header": json.loads(header)}, Run,
    )  # fmt: skip


def test_cause_of_a_failed_training_is_named_from_its_log(tmp_path: Path) -> None:
    from flatout.schema.exit_status import Outcome

    finding = Finding(rule="experiment-raised", severity="error", problem="your experiment raised")
    log = "epoch 1\nRuntimeError: CUDA error: no kernel image is available for execution\n"
    outcome = Outcome(run=failed_run(tmp_path, log), finding=finding, exit_code=1)
    causes = explain.causes_of(outcome)
    assert [one.rule for one in causes] == ["gpu-arch-not-in-build"]
    assert [getattr(one, "where", "") for one in causes[0].evidence] == ["its log"]


def test_error_that_no_rule_knows_has_no_cause() -> None:
    finding = Finding(rule="experiment-raised", severity="error", problem="raised KeyError: 'x'")
    assert explain.causes_in(finding, b"KeyError: 'x'\n", HERE) == ()


def test_long_text_is_explained_in_bounded_memory(tmp_path: Path) -> None:
    # benchmarks/doctor_times.py does it with 200 MB.
    path = tmp_path / "long.log"
    line = b"step 1234 loss 0.123 lr 1e-04 grad_norm 0.5 tokens/s 123456 gpu_mem 3.1 GiB\n"
    with open(path, "wb") as file:
        for _ in range(12):
            file.write(line * (2**20 // len(line)))
        file.write(b"RuntimeError: CUDA error: no kernel image is available for execution\n")
    # A process started by a large one has that one's ru_maxrss; its VmHWM is its own.
    code = (
        "import re, pathlib; from flatout.doctor import explain; "
        f"found = explain.explain({str(path)!r}); "
        "status = pathlib.Path('/proc/self/status').read_text(); "
        "print(found.findings[0].rule, re.search(r'VmHWM:\\s+([0-9]+) kB', status)[1])"
    )
    if sys.platform != "linux":
        pytest.skip("peak memory is read from /proc")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    rule, peak_kib = done.stdout.split()
    assert rule == "gpu-arch-not-in-build"
    assert int(peak_kib) * 1024 < 150 * 2**20


def test_log_that_was_rotated_is_decompressed(tmp_path: Path) -> None:
    text = b"RuntimeError: CUDA error: no kernel image is available for execution\n"
    packed = tmp_path / "train.log.2.gz"
    # Two members, as `cat a.gz b.gz` makes them.
    packed.write_bytes(gzip.compress(b"epoch 1\n") + gzip.compress(text))
    found = explain.explain(str(packed))
    assert isinstance(found, Diagnosis) and found.findings[0].rule == "gpu-arch-not-in-build"


@pytest.mark.parametrize("damage", ["cut off", "flipped", "only its magic"])
def test_compressed_log_that_is_damaged_is_refused_by_name(damage: str, tmp_path: Path) -> None:
    whole = gzip.compress(os.urandom(4096))
    packed = tmp_path / "train.log.gz"
    packed.write_bytes({
        "cut off": whole[: len(whole) // 2],
        "flipped": whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:],
        "only its magic": whole[:2],
    }[damage])  # fmt: skip
    with pytest.raises(UsageError, match="train.log.gz cannot be decompressed") as reported:
        explain.explain(str(packed))
    assert reported.value.rule == "log-not-readable"


def test_failure_of_a_program_ends_with_its_cause() -> None:
    # As `flatout setup` meets it where a step of training does not run.
    script = (
        "import sys, types, click; import flatout.cli.main as main\n"
        "from flatout.errors import RunFailed\n"
        "def fail():\n"
        "    raise RunFailed('training-step-failed', 'It does not run.', fix='--cpu', printed=\n"
        "        'RuntimeError: CUDA error: no kernel image is available for execution\\n')\n"
        "module = types.ModuleType('boom'); module.command = click.command()(fail)\n"
        "sys.modules['flatout.cli.commands.boom'] = module\n"
        "main.COMMANDS += (('boom', 'Train', 'Fails.'),)\n"
        "sys.exit(main.run(['boom']))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 1
    first, cause = done.stderr.index("It does not run."), done.stderr.index("gpu-arch-not-in-build")
    assert first < cause


def test_glance_is_over_in_time() -> None:
    assert GLANCE_S <= 0.5


def make_failed(cli: Any, python: Path) -> None:
    """The last run has failed, and its header names that interpreter."""
    folder = cli.runs / "mine-0001"
    header = json.loads((folder / "run.json").read_text())
    (folder / "run.json").write_text(json.dumps({**header, "python": str(python)}))
    finding = Finding(rule="experiment-failed", severity="error", problem="CUDA error: x")
    failed = Failed(at=2e9, step=6, finding=finding)
    events = folder / "events.jsonl"
    lines = [line for line in events.read_bytes().splitlines() if b'"finished"' not in line]
    events.write_bytes(b"\n".join([*lines, msgspec.json.encode(failed), b""]))


@pytest.mark.skipif(sys.platform == "win32", reason="the program is a shell script")
@pytest.mark.parametrize("is_known", [False, True])
def test_explaining_a_run_starts_a_program_of_its_header_only_if_it_is_known(
    trained: Any, tmp_path: Path, is_known: bool
) -> None:
    program, ran = tmp_path / "python", tmp_path / "ran"
    program.write_text(f'#!/bin/sh\ntouch {ran}\nexec {sys.executable} "$@"\n')
    program.chmod(0o755)
    make_failed(trained, program)
    if is_known:
        (trained.runs.parent / "interpreters.txt").write_text(f"{program}\n")
    done = trained.run("explain")
    assert done.returncode in (0, 1), done.stderr
    assert ran.exists() == is_known


def test_interpreter_of_a_training_is_known_from_then_on(cli: Any) -> None:
    assert cli.run(*cli.train()).returncode == 0
    assert (cli.runs.parent / "interpreters.txt").read_text().split() == [cli.python]
