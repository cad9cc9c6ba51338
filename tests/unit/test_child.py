from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.busy_machine import has_ended, wait_until
from support.made_environments import put_environment

from flatout import __version__
from flatout.compat import torch_needed
from flatout.errors import UsageError
from flatout.schema.change import Change
from flatout.schema.machine import Cpu, Gpu, Host, Machine, Memory
from flatout.schema.placement import RANK_DIED
from flatout.system import worker_process
from flatout.system.store import interpreters
from flatout.system.store.run_folder import RunFolder

NOT_ON_WINDOWS = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")


@pytest.fixture(autouse=True)
def no_python_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The fake engine stands in the environment; PYTHONPATH would put the real one before it."""
    monkeypatch.delenv("PYTHONPATH", raising=False)


def run_folder(cli: Any) -> RunFolder:
    """A run's folder as the fake engine needs it."""
    path = cli.runs / "mine-0001"
    path.mkdir(parents=True)
    (path / "run.json").write_text('{"spec": {"parameters": {"steps": 2000, "pause": 0.01}}}')
    return RunFolder(path)


def start(cli: Any, folder: RunFolder, *, is_attached: bool = True) -> worker_process.WorkerProcess:
    return worker_process.start_worker(cli.python, folder, change=None, is_attached=is_attached)


def test_start_worker_gives_it_a_group_of_its_own(cli: Any) -> None:
    folder = run_folder(cli)
    worker = start(cli, folder)
    try:
        if sys.platform != "win32":
            assert os.getpgid(worker.pid) == worker.pid != os.getpgid(0)
        wait_until(folder.metrics.exists)
        assert folder.lock().is_taken()
    finally:
        worker.kill()
    wait_until(lambda: not folder.lock().is_taken())


def test_start_worker_leaves_a_request_to_stop_to_whoever_takes_the_lock(
    cli: Any, tmp_path: Path
) -> None:
    folder = RunFolder(tmp_path)
    folder.request_stop()
    # The request may be meant for somebody who was quicker to take the run.
    worker_process.start_worker(cli.python, folder, change=None, is_attached=True).kill()
    assert folder.stop.exists()


@NOT_ON_WINDOWS
def test_kill_takes_what_the_worker_has_started(cli: Any, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\nsleep 600 &\necho $! > {tmp_path}/pid\nsleep 600\n")
    script.chmod(0o755)
    worker = worker_process.start_worker(str(script), folder, change=None, is_attached=True)
    wait_until(lambda: (tmp_path / "pid").exists() and (tmp_path / "pid").read_text().strip())
    pid = int((tmp_path / "pid").read_text())
    worker.kill()
    assert worker.exit_code() == -signal.SIGKILL
    wait_until(lambda: has_ended(pid))


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (-9, "was killed by SIGKILL"),
        (-11, "was killed by SIGSEGV"),
        (-99, "was killed by signal 99"),
        (0xC0000005, "was ended by an access violation"),
        (7, "ended with exit code 7"),
    ],
)
def test_ending_text_names_how_it_ended(code: int, text: str) -> None:
    assert worker_process.ending_text(code) == text


def test_worker_died_says_where_to_look_and_how_to_go_on(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "mine-0001")
    folder.path.mkdir()
    folder.log.write_text("one\n\ntwo\nthree\nfour\n")
    finding = worker_process.worker_died(folder, -9, Change(on="local:2"))
    assert finding.evidence == tuple(f"worker.log: {word}" for word in ("two", "three", "four"))
    assert "memory ran out" in str(finding.because)
    fixes = [fix.text for fix in finding.fixes]
    assert str(folder.log) in fixes[0]
    assert fixes[1].endswith(f"flatout train --resume {folder.path} --trust --on local:2")
    # Of a dry run nothing is left to read or to resume.
    assert worker_process.worker_died(folder, -9, None).fixes == ()
    assert worker_process.worker_died(folder, RANK_DIED, None).because == (
        "one of its ranks was killed, or exited without an error message"
    )


def test_check_interpreter_when_it_holds_the_same_flatout(cli: Any) -> None:
    assert interpreters.check_interpreter(cli.python, __version__) == sys.version_info[:2]


def test_check_interpreter_when_it_holds_another_flatout(cli: Any) -> None:
    with pytest.raises(UsageError, match=r"has flatout 0\.1\.0, this is 9\.9") as caught:
        interpreters.check_interpreter(cli.python, "9.9")
    # These are sources: nobody has published them.
    assert caught.value.fix == f'{cli.python} -m pip install "{Path(__file__).parents[2]}"'


@NOT_ON_WINDOWS
def test_own_command_when_the_shell_does_not_find_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "env" / "python"))
    assert interpreters.own_command() == f"{tmp_path}/env/python -m flatout"
    (tmp_path / "env").mkdir()
    (tmp_path / "env" / "flatout").touch(0o755)
    assert interpreters.own_command() == f"{tmp_path}/env/flatout"
    (tmp_path / "flatout").touch(0o755)
    assert interpreters.own_command() == "flatout"


@NOT_ON_WINDOWS
@pytest.mark.parametrize("text", ["exit 3", "echo hello", "echo 3"])
def test_check_interpreter_when_it_is_no_python(tmp_path: Path, text: str) -> None:
    script = tmp_path / "python"
    script.write_text(f"#!/bin/sh\n{text}\n")
    script.chmod(0o755)
    with pytest.raises(UsageError) as caught:
        interpreters.check_interpreter(str(script), "0.1.0")
    assert caught.value.rule == "python-not-found"


def test_find_interpreter_when_there_is_none(tmp_path: Path) -> None:
    assert interpreters.find_interpreter(None) == sys.executable
    with pytest.raises(UsageError) as caught:
        interpreters.find_interpreter(str(tmp_path / "python"))
    assert caught.value.rule == "python-not-found"


def machine(**facts: Any) -> Machine:
    return Machine(
        read_at="", host=Host(os="linux", python="3.11.7"), cpu=Cpu(num_threads=2),
        memory=Memory(), python="/venv/bin/python", **facts,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "build"),
    [
        ({}, "+cpu"),
        ({"driver": "581.42", "gpus": (Gpu(index=0, compute_capability="8.6"),)}, "+cu130"),
        ({"driver": None, "gpus": (Gpu(index=0, compute_capability="8.6"),)}, "+cpu"),
    ],
)
def test_require_torch_when_there_is_none(
    monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any], build: str
) -> None:
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(UsageError) as caught:
        torch_needed.require_torch(machine(**facts), (3, 12))
    assert caught.value.rule == "torch-not-installed"
    assert caught.value.fix.startswith("/venv/bin/python -m pip install torch==")
    assert build in caught.value.fix


def test_require_torch_when_an_environment_has_it_or_there_is_no_pip(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLATOUT_ENVIRONMENTS", str(tmp_path))
    # As uv makes environments for tools.
    monkeypatch.setitem(sys.modules, "pip", None)
    own = msgspec.structs.replace(machine(), python=sys.executable)
    with pytest.raises(UsageError) as caught:
        torch_needed.require_torch(own, (3, 12))
    assert caught.value.fix == "flatout setup torch; then add --env torch"
    put_environment("fast", "torch")
    with pytest.raises(UsageError) as caught:
        torch_needed.require_torch(own, (3, 12))
    assert caught.value.fix == "add --env fast"
    # Another interpreter was asked for.
    with pytest.raises(UsageError) as caught:
        torch_needed.require_torch(machine(), (3, 12))
    assert "-m pip install" in caught.value.fix
