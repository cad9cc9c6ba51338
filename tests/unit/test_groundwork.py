"""Plans for what lies below an environment, carried out as far as they can be; exported files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout import groundwork
from flatout.cli.laying import without_effect
from flatout.errors import UsageError
from flatout.nouns.groundwork import GroundworkRequest
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Plan, Step, Write
from flatout.probes.examination import examine
from flatout.system.system import RecordedSystem, Recording

MACHINES = Path(__file__).resolve().parents[1] / "cases" / "machines"


def recorded(name: str) -> Machine:
    case = json.loads((MACHINES / f"{name}.json").read_text(encoding="utf-8"))
    return examine(RecordedSystem(msgspec.convert(case["recording"], Recording))).machine


def step(file: Path, **more: Any) -> Step:
    return Step(text=file.name, action=Write(file=str(file), text="x"), changes="x", **more)


def test_wsl_comes_with_script_installer_and_request(tmp_path: Path) -> None:
    request = GroundworkRequest(goal="wsl", frameworks=("torch", "jax"))
    found = groundwork.lay(request, recorded("windows-rtx2070-spanish"))
    assert found.run_line == "powershell -ExecutionPolicy Bypass -File setup.ps1"
    texts = groundwork.with_installer(found.files)
    paths = groundwork.write_files(texts, tmp_path)
    assert {path.name for path in paths} == {"setup.ps1", "request-for-it.md", "install.sh"}
    # sh reads no line that ends in a carriage return; PowerShell 5.1 wants them.
    assert b"\r" not in (tmp_path / "install.sh").read_bytes()
    assert b"flatout setup torch jax" in (tmp_path / "setup.ps1").read_bytes()


def test_driver_goal_inside_wsl_is_about_finding_it() -> None:
    found = groundwork.lay(GroundworkRequest(goal="driver"), recorded("wsl2-rtx5090"))
    assert "found in this distro by everybody" in found.plan.goal


@pytest.mark.parametrize("goal", ["driver", "docker", "wsl"])
def test_container_is_refused_but_for_a_toolkit(goal: Any) -> None:
    machine = recorded("container-two-a800")
    with pytest.raises(UsageError, match="this is a container"):
        groundwork.lay(GroundworkRequest(goal=goal), machine)
    found = groundwork.lay(GroundworkRequest(goal="toolkit", cuda="12.6"), machine)
    assert any("cuda-toolkit-12-6" in line for lines in found.commands for line in lines)


def test_first_part_ends_before_what_a_person_must_do(tmp_path: Path) -> None:
    done = tmp_path / "done"
    done.write_text("x")
    steps = (step(done, safety="manual"), step(tmp_path / "a"), step(tmp_path / "b"),
             step(tmp_path / "c", safety="manual"), step(tmp_path / "d"))  # fmt: skip
    part = groundwork.first_part(Plan(goal="g", steps=steps))
    assert [one.text for one in part.steps] == ["done", "a", "b"]


def test_files_that_are_another_are_not_overwritten(tmp_path: Path) -> None:
    texts = {"Dockerfile": "FROM a\n", ".vscode/settings.json": "{}\n"}
    groundwork.write_files(texts, tmp_path)
    groundwork.write_files(texts, tmp_path)
    (tmp_path / "Dockerfile").write_text("mine")
    with pytest.raises(UsageError) as told:
        groundwork.write_files({"new": "", **texts}, tmp_path)
    assert told.value.rule == "file-exists" and not (tmp_path / "new").exists()
    groundwork.write_files(texts, tmp_path, is_forced=True)
    assert (tmp_path / "Dockerfile").read_text() == "FROM a\n"


def test_setup_script_replaces_its_earlier_edition_and_nothing_else(tmp_path: Path) -> None:
    script = "# Set up WSL\n#\n# Written by `flatout setup --wsl`; read it before you run it:\n"
    groundwork.write_script({"setup.ps1": script}, tmp_path)
    groundwork.write_script({"setup.ps1": script.replace("Set up", "Update")}, tmp_path)
    assert (tmp_path / "setup.ps1").read_text().startswith("# Update")
    (tmp_path / "install.sh").write_text("#!/bin/sh\n# Installs what this project needs.\n")
    texts = {"setup.ps1": script, "install.sh": "#!/bin/sh\n# Installs flatout for one person.\n"}
    with pytest.raises(UsageError) as told:
        groundwork.write_script(texts, tmp_path)
    assert told.value.rule == "file-exists" and "--force" not in (told.value.fix or "")
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
    told = json.loads(done.stdout)
    assert list(told["files"]) == ["environment.yml"]
    assert (cli.folder / "files/environment.yml").read_text() == told["files"]["environment.yml"]


def test_export_needs_an_environment_for_a_kernel(cli: Any) -> None:
    done = cli.run("setup", "export", "jupyter")
    assert done.returncode == 2 and "no-environment-to-export" in done.stderr
    done = cli.run("setup", "export", "jupyter", "--env", "nowhere")
    assert done.returncode == 2 and "Traceback" not in done.stderr
