"""Plans for driver, WSL, toolkit and containers: whole machines in, texts of commands out."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from flatout.compat.tables import shipped_tables
from flatout.errors import UsageError
from flatout.schema.environment_facts import ContainerEngine
from flatout.schema.machine import Machine
from flatout.schema.plan import Plan, PlanStep, RunProgram
from flatout.schema.plan_rows import step_rows
from flatout.setup.host.compilers import gcc_for, newest_gcc, visual_studio_for
from flatout.setup.host.docker import plan_docker
from flatout.setup.host.host_facts import HostFacts
from flatout.setup.host.toolkit import plan_toolkit
from flatout.setup.host.windows_script import commands, request_text, script_text
from flatout.setup.host.wsl import plan_wsl, wslconfig_settings


def _cases() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "setup_plans", Path(__file__).with_name("setup_plans.py")
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CASES = _cases()
MACHINES: dict[str, Machine] = dict(CASES.machines())


def plans(machine: Machine) -> Iterator[tuple[str, Plan]]:
    """The plans that there are for a machine."""
    for name, plan in CASES.GOALS.items():
        try:
            yield name, plan(machine)
        except UsageError as error:
            assert error.rule == "no-plan-here" and error.fix


@pytest.mark.parametrize("name", MACHINES)
def test_plans_are_those_that_were_read(name: str) -> None:
    file = CASES.PLANS / f"{name}.txt"
    assert CASES.text_of(MACHINES[name]) == file.read_text(encoding="utf-8"), (
        "run python3 tests/unit/setup_plans.py, and read what has changed"
    )


def test_there_is_no_plan_of_nothing() -> None:
    assert {path.stem for path in CASES.PLANS.glob("*.txt")} == set(MACHINES)


def every_step() -> Iterator[tuple[str, str, PlanStep]]:
    for name, machine in MACHINES.items():
        for goal, plan in plans(machine):
            for step in plan.steps:
                yield name, goal, step


def test_no_plan_inside_wsl_touches_a_driver() -> None:
    words = re.compile(r"nvidia-driver|ubuntu-drivers|nvidia-open|\.run\b|cuda-drivers")
    for name, _, step in every_step():
        if name.startswith("wsl"):
            assert not any(words.search(line) for line in commands(step)), (name, step)


def test_no_plan_installs_what_brings_a_driver_along() -> None:
    for name, _, step in every_step():
        for line in commands(step):
            assert not re.search(r"\b(cuda|cuda-\d+-\d+|cuda-drivers)(\s|$)", line), (name, line)
            assert "sparseVhd=true" not in line


def test_every_step_says_what_it_changes_and_how_it_is_taken_back() -> None:
    for name, goal, step in every_step():
        assert step.changes and step.text, (name, goal)
        if isinstance(step.action, RunProgram) and step.safety == "ask" and step.needs_root:
            can = step.can_be_undone or step.changes.startswith("nothing")
            can = can or "driver" in step.text or step.text == "update WSL"
            assert can or step.action.argv[0] in ("apt-get",), (name, goal, step.text)


def test_nothing_that_needs_root_or_restarts_is_safe() -> None:
    for name, goal, step in every_step():
        if step.needs_root or step.restarts or step.removes_packages:
            assert step.safety != "safe", (name, goal, step.text)


@pytest.mark.parametrize(
    ("total_gb", "memory"),
    [(4, None), (8, None), (16, None), (24, "16GB"), (32, "24GB"), (64, "48GB"), (256, "192GB")],
)
def test_wslconfig_leaves_windows_8_gb(total_gb: int, memory: str | None) -> None:
    machine = CASES._with(
        CASES.WINDOWS, windows__memory_bytes=total_gb * 2**30, windows__wslconfig={}
    )
    settings = wslconfig_settings(machine)
    assert settings.get("wsl2.memory") == memory
    assert "wsl2.networkingMode" not in settings


def test_wslconfig_keeps_what_the_person_has_set_well() -> None:
    own = {"wsl2.memory": "20GB", "wsl2.swap": "4GB", "wsl2.networkingMode": "NAT"}
    machine = CASES._with(CASES.WINDOWS, windows__memory_bytes=32 * 2**30, windows__wslconfig=own)
    assert wslconfig_settings(machine) == {}


def scripts() -> Iterator[tuple[str, str, str]]:
    for name, machine in MACHINES.items():
        try:
            wanted = plan_wsl(machine, shipped_tables(), ("torch", "jax"))
        except UsageError:
            continue
        yield name, script_text(wanted), request_text(wanted)


def test_script_is_plain_text_that_any_windows_reads() -> None:
    found = list(scripts())
    assert len(found) >= 4
    for _, script, _ in found:
        assert script.isascii() and "{{" not in script and "\r\n" in script
        assert script.replace("\r\n", "").count("\n") == 0
        # What is opened is closed.
        for left, right in ("{}", "()", "[]"):
            bare = re.sub(r"'[^'\r\n]*'", "''", script)
            assert abs(bare.count(left) - bare.count(right)) <= 1
        assert "-ExecutionPolicy Bypass -File setup.ps1" in script
        assert "VirtualizationFirmwareEnabled" in script.partition("'--install'")[0]


def test_script_goes_by_what_is_there_and_not_by_exit_codes() -> None:
    for _, script, _ in scripts():
        code = "\n".join(line for line in script.splitlines() if not line.startswith("#"))
        # These end with 0 before the restart too; or wait for a key that nobody is asked for.
        assert not re.search(r"wsl\.exe.*(--status|--version)", code)
        installed = code.index("'--install', '--no-distribution'")
        assert installed < code.index("if (-not (Test-Platform)) { Exit-ForRestart }")
        distro = code.index("& wsl.exe --install --distribution")
        assert "if (-not (Test-Distribution))" in code[distro:]
        # What asks something keeps its window.
        assert not re.search(r"(--install|setup).*\| *Out-Host", code)


def test_script_has_no_error_of_syntax(tmp_path: Path) -> None:
    shell = shutil.which("pwsh") or shutil.which("powershell")
    if shell is None:
        pytest.skip("needs PowerShell: setup.ps1 is not checked")
    for name, script, _ in scripts():
        file = tmp_path / f"{name}.ps1"
        file.write_text(script, encoding="ascii")
        ask = (
            "$errors = $null; [void][System.Management.Automation.Language.Parser]::ParseFile("
            f"'{file}', [ref]$null, [ref]$errors); $errors; exit $errors.Count"
        )
        done = subprocess.run(
            [shell, "-NoProfile", "-Command", ask], capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


UBUNTU_24 = HostFacts(os="linux", family="ubuntu", release="24.04")


@pytest.mark.parametrize(
    ("cuda", "release", "older"),
    [((12, 6), "24.04", None), ((12, 5), "24.04", None), ((11, 4), "22.04", 10),
     ((11, 8), "22.04", None), ((12, 8), "26.04", 14), ((13, 2), "26.04", None)],
)  # fmt: skip
def test_compiler_is_one_that_nvcc_accepts(
    cuda: tuple[int, int], release: str, older: int | None
) -> None:
    place = msgspec.structs.replace(UBUNTU_24, release=release)
    assert gcc_for(cuda, place) == older


def test_newest_compiler_is_the_one_that_the_toolkit_names() -> None:
    """The table, against the headers of the toolkit that is here."""
    headers = list(Path("/usr/local").glob("cuda*/targets/x86_64-linux/include/crt/host_config.h"))
    if not headers:
        pytest.skip("needs a CUDA toolkit below /usr/local")
    for header in headers:
        runtime = (header.parents[1] / "cuda_runtime_api.h").read_text(encoding="utf-8")
        number = re.search(r"define CUDART_VERSION\s+(\d+)", runtime)
        assert number is not None
        major, minor = int(number[1]) // 1000, int(number[1]) % 1000 // 10
        reported = re.search(r"gcc versions later than (\d+)", header.read_text(encoding="utf-8"))
        assert reported is not None and newest_gcc((major, minor)) == int(reported[1])


def test_visual_studio_is_one_that_nvcc_accepts() -> None:
    assert visual_studio_for((11, 3)).year == "2019"
    assert visual_studio_for((12, 1)).toolset == "14.38"
    assert visual_studio_for((12, 4)).toolset is None


def test_toolkit_is_proved_by_compiling() -> None:
    if not Path("/usr/local/cuda/bin/nvcc").exists():
        pytest.skip("needs a CUDA toolkit in /usr/local/cuda")
    plan = plan_toolkit(MACHINES["linux-without-gpu"], "13.0", "~/.bashrc", shipped_tables())
    proof = plan.steps[-1].action
    assert isinstance(proof, RunProgram)
    line = proof.argv[-1].replace("/usr/local/cuda-13.0", "/usr/local/cuda")
    assert subprocess.run(["sh", "-c", line]).returncode == 0
    assert subprocess.run(["sh", "-c", line.replace("kernel()", "kernel(")]).returncode != 0


def test_toolkit_on_ubuntu_24_inside_wsl_begins_where_it_installs() -> None:
    machine = CASES._with(CASES.WSL, host__distribution="Ubuntu 24.04.2 LTS", gpus=())
    with pytest.raises(UsageError, match="12.4") as reported:
        plan_toolkit(machine, "12.4", "~/.bashrc", shipped_tables())
    assert "libtinfo5" in (reported.value.because or "")
    assert plan_toolkit(machine, "12.6", "~/.bashrc", shipped_tables()).steps


@pytest.mark.parametrize("name", [name for name in MACHINES if name.startswith("windows")])
def test_toolkit_on_windows_brings_no_driver(name: str) -> None:
    for goal, plan in plans(MACHINES[name]):
        for step in plan.steps if goal == "toolkit" else ():
            line = " ".join(commands(step))
            if "Nvidia.CUDA" in line:
                assert "--override '-s -n nvcc_" in line and "Display.Driver" not in line


def test_rows_of_a_step_on_windows_are_for_powershell() -> None:
    (shown,) = [
        text
        for _, plan in plans(MACHINES["windows-rtx2070-spanish"])
        for step in plan.steps
        for name, text in step_rows(step)
        if name == "runs" and "Nvidia.CUDA" in text
    ]
    assert shown.startswith("winget install ") and "--override '-s -n nvcc_" in shown
    step = PlanStep(
        text="t", changes="c", where="windows", needs_root=True, undo=("x", "it's $y"),
        action=RunProgram(argv=(r"C:\a b\x.exe", "`id`")),
    )  # fmt: skip
    rows = dict(step_rows(step))
    assert rows["runs"] == r"& 'C:\a b\x.exe' '`id`'"
    assert rows["undo"].endswith(" which runs x 'it''s $y'")


def test_docker_comes_with_compose_and_its_group() -> None:
    texts = [step.text for step in plan_docker(MACHINES["linux-two-rtx3090"], shipped_tables(),
                                               "ada").steps]  # fmt: skip
    assert "install docker-compose-v2" in texts
    assert any("ada" in text for text in texts)


@pytest.mark.parametrize(
    ("user", "is_member", "is_joined"),
    [("ada", False, True), ("ada", True, False), ("root", None, False), ("1000", False, False)],
)
def test_docker_under_sudo_goes_by_the_groups_of_the_person(
    user: str, is_member: bool | None, is_joined: bool
) -> None:
    machine = MACHINES["linux-two-rtx3090"]
    engine = ContainerEngine(name="docker", version="28.0", is_permitted=True, compose="2.30")
    machine = msgspec.structs.replace(machine, engines=(engine,))
    steps = plan_docker(machine, shipped_tables(), user, is_member=is_member).steps
    assert any("without sudo" in step.text for step in steps) == is_joined


def test_request_is_one_page() -> None:
    for _, _, request in scripts():
        assert len(request.splitlines()) <= 60
        assert "wsl.exe --install --no-distribution" in request
        assert "{" not in re.sub(r"```.*?```", "", request, flags=re.DOTALL)
