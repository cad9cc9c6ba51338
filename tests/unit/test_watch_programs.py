"""`flatout watch`: a program's output, signals and end are the same as without it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

SRC = str(Path(__file__).resolve().parents[2] / "src")
START = f"import sys; sys.path.insert(0, {SRC!r}); import flatout.__main__ as m; m.main()"
WATCH = [sys.executable, "-c", START, "watch"]
needs_posix = pytest.mark.skipif(sys.platform == "win32", reason="needs signals of POSIX")
# Says what it has heard, until a second after the first.
LISTENS = """
import signal, sys, time
names = ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1")
until = time.monotonic() + 120
def heard(number, frame):
    global until
    print(signal.Signals(number).name, flush=True)
    until = min(until, time.monotonic() + 1)
for name in names:
    signal.signal(getattr(signal, name), heard)
print("ready", flush=True)
while time.monotonic() < until:
    time.sleep(0.05)
"""

# Says something once there is a file `go`.
LATE = """
import os, sys, time
until = time.monotonic() + 60
while not os.path.exists("go") and time.monotonic() < until:
    time.sleep(0.02)
print(sys.argv[1], flush=True)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Flatout's state in a folder of its own, in which programs are started."""
    monkeypatch.setenv("FLATOUT_STATE", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def watched(*arguments: str, **options: Any) -> subprocess.CompletedProcess[bytes]:
    """Runs it to its end."""
    return subprocess.run(
        [*WATCH, *arguments], capture_output=True, timeout=60, check=False, **options
    )


def python(code: str, *arguments: str) -> list[str]:
    """A program of Python."""
    return ["--", sys.executable, "-c", code, *arguments]


def record(home: Path) -> dict[str, Any]:
    """The only record."""
    (path,) = (home / "state" / "watched").glob("*/watch.json")
    found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return found


def test_output_and_exit_code_are_the_programs(home: Path) -> None:
    code = "import os; os.write(1, bytes(range(256)) * 5000); os.write(2, b'err'); os._exit(77)"
    done = watched(*python(code))
    assert (done.returncode, done.stdout) == (77, bytes(range(256)) * 5000)
    assert done.stderr.startswith(b"err")
    kept = record(home)
    assert kept["exit_code"] == 77
    assert sorted(Path(kept["output"]).read_bytes()) == sorted(done.stdout + b"err")


def test_input_is_the_programs(home: Path) -> None:
    done = watched(*python("import sys; print(sys.stdin.read()[::-1])"), input=b"abc")
    assert done.stdout.split() == [b"cba"]


def test_arguments_folder_and_variables_are_the_programs(home: Path) -> None:
    code = "import os, sys; print(sys.argv[1:], os.getcwd(), os.environ['ONE'])"
    (home / "here").mkdir()
    done = watched(
        *python(code, "--json", "--", "x y"), cwd=home / "here", env={**os.environ, "ONE": "1"}
    )
    assert done.stdout.decode().split("\n")[0].endswith(f"{home / 'here'} 1")
    assert "['--json', '--', 'x y']" in done.stdout.decode()


@pytest.mark.skipif(sys.platform == "win32", reason="pipes there have no number to compare")
def test_order_of_both_outputs_is_kept_when_they_are_one(home: Path) -> None:
    code = "import os\nfor i in range(2000): os.write(1 + i % 2, b'%d\\n' % i)"
    done = subprocess.run(
        [*WATCH, *python(code)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stdout.startswith(b"".join(b"%d\n" % number for number in range(2000)))


@needs_posix
@pytest.mark.parametrize("number", ["SIGKILL", "SIGTERM", "SIGSEGV", "SIGINT"])
def test_a_signal_that_ends_the_program_ends_flatout(home: Path, number: str) -> None:
    code = (
        f"import os, signal; signal.signal(signal.SIGINT, signal.SIG_DFL);"
        f"os.kill(os.getpid(), signal.{number})"
    )
    done = watched(*python(code))
    assert done.returncode == -getattr(signal, number)
    assert record(home)["exit_code"] == done.returncode


@needs_posix
def test_a_shell_reports_a_signal_as_ever(home: Path) -> None:
    words = " ".join(f"'{word}'" for word in WATCH[:1]) + f' -c "{START}" watch'
    done = subprocess.run(
        ["sh", "-c", f"{words} -- sh -c 'kill -9 $$'; echo $?"], capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert done.stdout.split() == [b"137"]


@needs_posix
def test_where_the_system_does_not_wait_for_signals_the_end_is_still_known() -> None:
    # As on macOS: a wait that takes the program's end away leaves nothing to ask for.
    code = (
        f"import sys; sys.path.insert(0, {SRC!r})\n"
        "from flatout.system.watched_program import WatchedProgram\n"
        "sys.platform = 'darwin'\n"
        "program = WatchedProgram([sys.executable, '-c', 'import time; time.sleep(0.3)'], None)\n"
        "while not program.wait(1.0): pass\n"
        "print(program.end.exit_code, program.end.cpu_s > 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.stdout.split(), done.stderr) == (["0", "True"], "")


@pytest.fixture
def listening(home: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A watched program that has begun to listen to signals."""

    def listen() -> None:
        # What started the tests may ignore them, as nohup does.
        for number in (signal.SIGHUP, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)

    process = subprocess.Popen(
        [*WATCH, *python(LISTENS)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=listen,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    yield process
    process.kill()
    process.communicate()


@needs_posix
@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1"])
def test_a_signal_to_flatout_reaches_the_program_once(
    listening: subprocess.Popen[bytes], name: str
) -> None:
    listening.send_signal(getattr(signal, name))
    out, _ = listening.communicate(timeout=60)
    assert (listening.returncode, out.split()) == (0, [name.encode()])


@needs_posix
def test_nohup_is_nohup_for_the_program(home: Path) -> None:
    code = "import signal; print(signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)"
    done = watched(*python(code), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    assert done.stdout.split() == [b"True"]


@needs_posix
def test_a_reader_that_closes_the_pipe_ends_the_program(home: Path) -> None:
    code = "import sys\nwhile True: print('x' * 100)"
    process = subprocess.Popen(
        [*WATCH, *python(code)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    assert process.stdout is not None
    process.stdout.read(1000)
    process.stdout.close()
    # As Python ends: its output is gone.
    assert process.wait(timeout=60) == 1


@pytest.mark.parametrize(
    ("broken", "is_sampling"),
    [
        ("import flatout.system.process_tree as m; m.ProcessTree.take = None", True),
        ("import flatout.system.machine_sampler as m; m.MachineSampler.__enter__ = None", True),
        ("import flatout.cli.render.show_watch as m; m.print_summary = None", False),
        ("import flatout.monitor.watch as m; m.Watch.ticks = None", False),
    ],
)
def test_a_fault_of_flatout_leaves_the_program_alone(
    home: Path, broken: str, is_sampling: bool
) -> None:
    code = "import time; time.sleep(1); print('done'); raise SystemExit(5)"
    start = START.replace("import flatout.__main__", f"{broken}; import flatout.__main__")
    done = subprocess.run(
        [sys.executable, "-c", start, "watch", *python(code)], capture_output=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.split()) == (5, [b"done"])
    assert (b"flatout itself failed" in done.stderr) is not is_sampling
    if is_sampling:
        assert "TypeError" in record(home)["unread"]["sampling"]


def test_what_is_left_behind_still_prints(home: Path) -> None:
    code = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {LATE!r}, 'late'])"
    process = subprocess.Popen(
        [*WATCH, *python(code)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert process.stderr is not None
    assert any(b"still prints" in line for line in process.stderr)
    (home / "go").touch()
    stdout, _ = process.communicate(timeout=60)
    assert (process.returncode, stdout.split()) == (0, [b"late"])


@pytest.mark.parametrize(
    ("program", "rule"),
    [
        (["--", ""], b"no-program"),
        (["--", "no-such-program-anywhere"], b"program-not-found"),
        (["--", "./plain.txt"], b"program-not-started"),
        (["--", "."], b"program-not-started"),
    ],
)
def test_what_cannot_be_started_is_named(home: Path, program: list[str], rule: bytes) -> None:
    (home / "plain.txt").write_text("no program")
    done = watched(*program, cwd=home)
    assert (done.returncode, done.stdout) == (2, b"")
    assert rule in done.stderr
    assert not list(home.glob("state/watched/*/watch.json"))


def test_json_is_alone_on_stdout(home: Path) -> None:
    done = watched("--json", *python("print('from the program')"))
    document = json.loads(done.stdout)
    assert document["exit_code"] == 0
    assert b"from the program" in done.stderr
    assert document == record(home)


def test_record_is_in_the_given_folder_which_must_be_empty(home: Path) -> None:
    given = home / "given"
    assert watched("--out", str(given), *python("print(1)")).returncode == 0
    assert (given / "output.log").read_bytes().split() == [b"1"]
    done = watched("--out", str(given), *python("print(2)"))
    assert done.returncode == 2
    assert b"folder-not-empty" in done.stderr
    assert (given / "output.log").read_bytes().split() == [b"1"]
    shown = watched("--show", str(given) + os.sep)
    assert shown.returncode == 0
    assert str(given).encode() in shown.stdout


def test_failure_is_explained_from_the_output(home: Path) -> None:
    text = "RuntimeError: DataLoader worker (pid 123) is killed by signal: Bus error. "
    text += "It is possible that dataloader's workers are out of shared memory."
    code = f"import sys; sys.exit({text!r})"
    done = watched(*python(code))
    assert done.returncode == 1
    assert b"Shared memory, /dev/shm" in done.stderr
    assert record(home)["causes"]


def test_samples_tell_processor_and_memory_of_the_tree(home: Path) -> None:
    busy = "import time\nx = bytearray(60_000_000)\nend = time.process_time() + 1.2\n"
    busy += "while time.process_time() < end: pass"
    code = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    assert watched(*python(code)).returncode == 0
    time_spent = record(home)["time"]
    assert time_spent["cpu_s"] >= 1.2
    assert time_spent["rss_bytes"] >= 60_000_000
    (samples,) = (home / "state" / "watched").glob("*/samples.jsonl")
    lines = [json.loads(line) for line in samples.read_text().splitlines()]
    assert max(line.get("program", {}).get("num_processes", 0) for line in lines) == 2


def test_records_are_listed_and_found(home: Path) -> None:
    (home / "train.py").write_text("print('trained')")
    assert watched("--", sys.executable, str(home / "train.py")).returncode == 0
    listed = watched()
    assert b"train-0001" in listed.stdout
    (line,) = json.loads(watched("--json").stdout)
    assert (line["id"], line["exit_code"], line["is_running"]) == ("train-0001", 0, False)
    for name in ("train", "last", "train-0001"):
        assert json.loads(watched("--show", name, "--json").stdout)["id"] == "train-0001"
    assert b"unknown-record" in watched("--show", "other").stderr


needs_linux = pytest.mark.skipif(sys.platform != "linux", reason="needs pseudo-terminals of Linux")


def on_terminal(home: Path, program: list[str]) -> Any:
    """Watches a program on a terminal of its own."""
    from support.controlling_terminal import ControllingTerminal

    environment = {**os.environ, "TERM": "xterm-256color", "FLATOUT_STATE": str(home / "state")}
    return ControllingTerminal([*WATCH, *program], environment)


@needs_linux
def test_a_program_on_a_terminal_is_on_a_terminal(home: Path) -> None:
    code = "import os, sys; print(*map(os.isatty, (0, 1, 2)), os.get_terminal_size(1), end='|')"
    with on_terminal(home, python(code)) as terminal:
        terminal.expect(b"True True True os.terminal_size(columns=80, lines=24)|")
        assert terminal.finish() == 0
    kept = Path(record(home)["output"]).read_bytes()
    assert kept == b"True True True os.terminal_size(columns=80, lines=24)|"


@needs_linux
def test_live_line_is_erased_before_the_next_output(home: Path) -> None:
    with on_terminal(home, python("print('one', flush=True)\n" + LATE, "two")) as terminal:
        terminal.expect(b"memory")
        (home / "go").touch()
        terminal.expect(b"two")
        assert terminal.finish() == 0
        between = terminal.written.partition(b"one\r\n")[2].partition(b"two\r\n")[0]
    assert between.endswith(b"\r\x1b[K")
    assert b"\n" not in between
    assert Path(record(home)["output"]).read_bytes() == b"one\ntwo\n"


@needs_linux
def test_no_line_is_drawn_into_a_bar(home: Path) -> None:
    code = "import time; print('\\r 10%', end='', flush=True); time.sleep(2.5); print('\\r 20%')"
    with on_terminal(home, python(code)) as terminal:
        assert terminal.finish() == 0
        assert terminal.written.startswith(b"\r 10%\r 20%\r\n")


@needs_linux
def test_ctrl_c_reaches_the_program_once(home: Path) -> None:
    with on_terminal(home, python(LISTENS)) as terminal:
        terminal.expect(b"ready")
        terminal.type(b"\x03")
        terminal.expect(b"SIGINT")
        assert terminal.finish() == 0
        assert terminal.written.count(b"SIGINT") == 1


@needs_linux
def test_a_new_size_reaches_the_program(home: Path) -> None:
    code = (
        "import os, signal, time\n"
        "signal.signal(signal.SIGWINCH, lambda *_: print('now', os.get_terminal_size(1)))\n"
        f"print('ready', flush=True)\n{LATE}"
    )
    with on_terminal(home, python(code, "end")) as terminal:
        terminal.expect(b"ready")
        time.sleep(0.3)
        terminal.resize(30, 100)
        terminal.expect(b"now os.terminal_size(columns=100, lines=30)")
        (home / "go").touch()
        assert terminal.finish() == 0


@needs_linux
def test_ctrl_z_stops_both_and_fg_continues_them(home: Path) -> None:
    from support.controlling_terminal import ControllingTerminal

    environment = {**os.environ, "TERM": "xterm", "FLATOUT_STATE": str(home / "state"), "PS1": "$ "}
    with ControllingTerminal(["bash", "--norc", "-i"], environment) as shell:
        shell.expect(b"$ ")
        (home / "t.py").write_text("print('ready', flush=True)\n" + LATE)
        words = " ".join([f"'{sys.executable}'", "-c", f'"{START}"', "watch", "--", "python3"])
        shell.type(f"{words} t.py done\n".encode())
        shell.expect(b"\rready\r\n")
        time.sleep(0.5)
        shell.type(b"\x1a")
        shell.expect(b"Stopped")
        (home / "go").touch()
        shell.type(b"fg; echo code $?\n")
        shell.expect(b"done\r\n")
        shell.expect(b"\ncode 0\r\n")
        shell.type(b"exit\n")
        assert shell.finish() == 0
