"""A command line with an engine that only writes lines, for tests of the outside."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.forked_commands import ForkedCommands, without

from flatout import __version__

ROOT = Path(__file__).resolve().parents[2]
CASES = ROOT / "tests" / "cases" / "cli"
IS_WINDOWS = sys.platform == "win32"

# From this checkout, whatever is installed.
SRC = str(ROOT / "src")
START = f"sys.path.insert(0, {SRC!r}); import flatout.__main__ as m; m.main()"


class CommandLine:
    """`flatout`, as a process, with runs in a folder of its own.

    python: an interpreter that says it holds torch and this flatout; its engine is the fake one.
    forked: runs what need not load flatout first.
    experiment: a file whose parameters tell the fake engine what to do.
    missing: packages that it cannot import, whether they are installed or not. By default those
        that draw: to draw after every training would take long.
    """

    def __init__(self, folder: Path, python: str, forked: ForkedCommands) -> None:
        self.folder = folder
        self.forked = forked
        self.state = folder / "state"
        self.runs = self.state / "runs"
        self.python = python
        self.experiment = str(folder / "mine.py")
        self.missing: tuple[str, ...] = ("matplotlib",)
        shutil.copy(CASES / "mine.py", self.experiment)

    def environment(self, **more: str) -> dict[str, str]:
        """What a command line sees: a shell that finds `flatout`, and nothing that is ours."""
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        (programs / ("flatout.exe" if IS_WINDOWS else "flatout")).touch(0o755)
        kept = kept_variables()
        path = os.pathsep.join([str(programs), kept.get("PATH", "")])
        ours = {"FLATOUT_STATE": str(self.state), "FLATOUT_DATA": "", "PATH": path}
        return {**kept, **ours, **more}

    def start(self, *arguments: str, **more: str) -> subprocess.Popen[str]:
        """Starts a command line."""
        code = f"import sys; {without(self.missing)}{START}"
        return subprocess.Popen(
            [sys.executable, "-P", "-c", code, *arguments],
            env=self.environment(**more),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            cwd=self.folder,
        )  # fmt: skip

    def run(self, *arguments: str, **more: str) -> subprocess.CompletedProcess[str]:
        """Runs a command line to its end."""
        environment = self.environment(**more)
        if self.forked.can_run(environment):
            return self.forked.run(
                arguments, environment=environment, folder=self.folder, missing=self.missing
            )
        process = self.start(*arguments, **more)
        try:
            stdout, stderr = process.communicate(timeout=180)
        finally:
            process.kill()
        return subprocess.CompletedProcess(arguments, process.returncode, stdout, stderr)

    def train(self, *arguments: str, **parameters: object) -> list[str]:
        """Arguments that train the experiment with the fake engine."""
        pairs = [f"{name}={value}" for name, value in parameters.items()]
        settings = [word for pair in pairs for word in ("-s", pair)]
        return ["train", self.experiment, "--python", self.python, *settings, *arguments]


def kept_variables() -> dict[str, str]:
    """Ours, but for some that change what a command prints or imports."""
    # PYTHONPATH would put the real engine in the place of the fake one.
    dropped = ("PYTHONPATH", "NO_COLOR", "FORCE_COLOR")
    return {name: value for name, value in os.environ.items() if name not in dropped}


@pytest.fixture(scope="session")
def forked() -> Iterator[ForkedCommands]:
    """Runs command lines that need not load flatout, each as a process."""
    commands = ForkedCommands(SRC, kept_variables())
    yield commands
    commands.close()


@pytest.fixture(scope="session")
def fake_python(tmp_path_factory: pytest.TempPathFactory) -> str:
    """An environment without torch that says it has it, and an engine that only writes lines."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=not IS_WINDOWS)
    version = f"python{sys.version_info[0]}.{sys.version_info[1]}"
    packages = folder / ("Lib" if IS_WINDOWS else f"lib/{version}") / "site-packages"
    for name, number in (("torch", "2.13.0+cpu"), ("flatout", __version__)):
        info = packages / f"{name}-{number}.dist-info"
        info.mkdir()
        text = f"Metadata-Version: 2.1\nName: {name}\nVersion: {number}\n"
        (info / "METADATA").write_text(text)
    engine = packages / "flatout" / "engine"
    for package, worker in (("training", "fake_worker.py"), ("predict", "fake_answer.py")):
        (engine / package).mkdir(parents=True)
        (engine / package / "__init__.py").write_text("")
        shutil.copy(CASES / worker, engine / package / "worker.py")
    (engine / "serve").mkdir()
    (engine / "serve" / "__init__.py").write_text("")
    shutil.copy(CASES / "fake_export.py", engine / "serve" / "export_worker.py")
    (packages / "flatout" / "__init__.py").write_text(f'__version__ = "{__version__}"\n')
    (engine / "__init__.py").write_text("")
    return str(folder / ("Scripts/python.exe" if IS_WINDOWS else "bin/python"))


@pytest.fixture
def cli(tmp_path: Path, fake_python: str, forked: ForkedCommands) -> CommandLine:
    """A command line without any runs yet."""
    return CommandLine(tmp_path, fake_python, forked)


@pytest.fixture(scope="session")
def trained_once(
    tmp_path_factory: pytest.TempPathFactory, fake_python: str, forked: ForkedCommands
) -> CommandLine:
    """A command line with two runs that have finished, `mine-0001` and `one`: to be copied."""
    cli = CommandLine(tmp_path_factory.mktemp("trained"), fake_python, forked)
    for words in ((), ("--name", "one")):
        done = cli.run(*cli.train(*words))
        assert done.returncode == 0, done.stderr
    return cli


@pytest.fixture
def trained(cli: CommandLine, trained_once: CommandLine) -> CommandLine:
    """A command line with a run that has finished, `mine-0001`."""
    shutil.copytree(trained_once.runs / "mine-0001", cli.runs / "mine-0001")
    return cli
