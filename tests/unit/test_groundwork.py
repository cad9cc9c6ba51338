"""Plans for what lies below an environment, carried out as far as they can be; exported files."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.cli.flows.host_setup import without_effect
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.plan import Plan, PlanStep, Write
from flatout.setup.host import api as host_api
from flatout.setup.model.host_plan import HostPlanRequest
from flatout.system import invoking_user
from flatout.system.host_system import RecordedSystem, SystemRecording
from flatout.system.probes.examination import examine

MACHINES = Path(__file__).resolve().parents[1] / "cases" / "machines"


def recorded(name: str) -> Machine:
    case = json.loads((MACHINES / f"{name}.json").read_text(encoding="utf-8"))
    return examine(RecordedSystem(msgspec.convert(case["recording"], SystemRecording))).machine


def step(file: Path, **more: Any) -> PlanStep:
    return PlanStep(text=file.name, action=Write(file=str(file), text="x"), changes="x", **more)


def test_wsl_comes_with_script_installer_and_request(tmp_path: Path) -> None:
    request = HostPlanRequest(goal="wsl", frameworks=("torch", "jax"))
    found = host_api.plan_host(request, recorded("windows-rtx2070-spanish"))
    assert found.run_line == "powershell -ExecutionPolicy Bypass -File setup.ps1"
    texts = host_api.with_installer(found.files)
    paths = host_api.write_files(texts, tmp_path)
    assert {path.name for path in paths} == {"setup.ps1", "request-for-it.md", "install.sh"}
    # sh reads no line that ends in a carriage return; PowerShell 5.1 wants them.
    assert b"\r" not in (tmp_path / "install.sh").read_bytes()
    assert b"flatout setup torch jax" in (tmp_path / "setup.ps1").read_bytes()


def test_driver_goal_inside_wsl_is_about_finding_it() -> None:
    found = host_api.plan_host(HostPlanRequest(goal="driver"), recorded("wsl2-rtx5090"))
    assert "visible to everything in this distro" in found.plan.goal


@pytest.mark.parametrize("goal", ["driver", "docker", "wsl"])
def test_container_is_refused_but_for_a_toolkit(goal: Any) -> None:
    machine = recorded("container-two-a800")
    with pytest.raises(UsageError, match="this is a container"):
        host_api.plan_host(HostPlanRequest(goal=goal), machine)
    found = host_api.plan_host(HostPlanRequest(goal="toolkit", cuda="12.6"), machine)
    assert any("cuda-toolkit-12-6" in line for lines in found.commands for line in lines)


def test_docker_when_nobody_has_the_number_of_this_user(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown() -> str:
        raise KeyError("getpwuid(): uid not found: 4242")

    monkeypatch.setattr(invoking_user.getpass, "getuser", unknown)
    monkeypatch.delenv("SUDO_USER", raising=False)
    with pytest.raises(UsageError, match="this is a container"):
        host_api.plan_host(HostPlanRequest(goal="docker"), recorded("container-two-a800"))


@pytest.mark.skipif(sys.platform == "win32", reason="sudo of Linux")
def test_docker_under_sudo_is_for_who_has_typed_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(invoking_user.os, "geteuid", lambda: 0)
    monkeypatch.setenv("SUDO_USER", "ada")
    monkeypatch.setenv("USER", "root")
    assert invoking_user.invoking_user() == "ada"
    assert not invoking_user.is_in_group("ada", "docker")


def test_first_part_ends_before_what_a_person_must_do(tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.write_text("x")
    steps = (step(done, safety="manual"), step(tmp_path / "a"), step(tmp_path / "b"),
             step(tmp_path / "c", safety="manual"), step(tmp_path / "d"))  # fmt: skip
    part = host_api.first_part(Plan(goal="g", steps=steps))
    assert [one.text for one in part.steps] == ["done", "a", "b"]


def test_files_that_are_another_are_not_overwritten(tmp_path: Path) -> None:
    texts = {"Dockerfile": "FROM a\n", ".vscode/settings.json": "{}\n"}
    host_api.write_files(texts, tmp_path)
    host_api.write_files(texts, tmp_path)
    (tmp_path / "Dockerfile").write_text("mine")
    with pytest.raises(UsageError) as reported:
        host_api.write_files({"new": "", **texts}, tmp_path)
    assert reported.value.rule == "file-exists" and not (tmp_path / "new").exists()
    host_api.write_files(texts, tmp_path, is_forced=True)
    assert (tmp_path / "Dockerfile").read_text() == "FROM a\n"


def test_setup_script_replaces_its_earlier_edition_and_nothing_else(tmp_path: Path) -> None:
    script = "# Set up WSL\n#\n# Written by `flatout setup --wsl`; read it before you run it:\n"
    host_api.write_script({"setup.ps1": script}, tmp_path)
    host_api.write_script({"setup.ps1": script.replace("Set up", "Update")}, tmp_path)
    assert (tmp_path / "setup.ps1").read_text().startswith("# Update")
    (tmp_path / "install.sh").write_text("#!/bin/sh\n# Installs what this project needs.\n")
    texts = {"setup.ps1": script, "install.sh": "#!/bin/sh\n# Installs flatout for one person.\n"}
    with pytest.raises(UsageError) as reported:
        host_api.write_script(texts, tmp_path)
    assert reported.value.rule == "file-exists" and "--force" not in (reported.value.fix or "")
    assert "project" in (tmp_path / "install.sh").read_text()


def test_option_without_effect_is_named() -> None:
    options = {"is_dry": True, "cuda": "12.6", "packages": ("a",), "folder": None, "is_cpu": True}
    assert without_effect("toolkit", options) == ["--cpu"]
    # As they are typed, not as their values are called.
    options |= {"mirrors": ("a",), "files": ("b",), "lock": "c", "frameworks": ("jax",)}
    assert without_effect("docker", options) == [
        "--cuda", "--with", "--cpu", "--mirror", "-r", "--from", "FRAMEWORK",
    ]  # fmt: skip


def test_export_writes_what_fits_this_machine(cli: Any) -> None:
    done = cli.run("setup", "export", "conda", "--in", "files", "--json")
    assert done.returncode == 0, done.stderr
    reported = json.loads(done.stdout)
    assert list(reported["files"]) == ["environment.yml"]
    assert (cli.folder / "files/environment.yml").read_text() == reported["files"][
        "environment.yml"
    ]


def test_export_needs_an_environment_for_a_kernel(cli: Any) -> None:
    done = cli.run("setup", "export", "jupyter")
    assert done.returncode == 2 and "no-environment-to-export" in done.stderr
    done = cli.run("setup", "export", "jupyter", "--env", "nowhere")
    assert done.returncode == 2 and "Traceback" not in done.stderr
