"""Fixes as plans: which commands flatout carries out, and that `safe` means what it says."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import msgspec
import pytest

from flatout.doctor.api import judge
from flatout.doctor.diagnose import case_from_text, diagnose
from flatout.doctor.fix.plan import with_plans
from flatout.doctor.model.diagnosis import Diagnosis
from flatout.doctor.model.fix_plan import by_hand, mended, repairs
from flatout.doctor.ruleset import shipped_rules
from flatout.schema.environment_facts import Environment
from flatout.schema.finding import WSLCONFIG, Finding, Fix
from flatout.schema.machine import Host, Machine
from flatout.schema.plan import Block, Edit, Entry, InstallPackages, Plan, PlanStep, RunProgram
from flatout.schema.wsl import Windows, Wsl
from flatout.system.host_system import RecordedSystem, SystemRecording
from flatout.system.probes.examination import examine

RULESET = shipped_rules()

CASES = Path(__file__).parents[1] / "cases"
PYTHON = "/home/ada/.venv/bin/python"
ENVIRONMENT = Environment(python=PYTHON, version="3.12.1", kind="venv")
UBUNTU = Machine(
    host=Host(os="linux", distribution="Ubuntu 24.04 LTS", release="6.8.0-41-generic"),
    python=PYTHON,
    environments=(ENVIRONMENT,),
)
UNDER_WSL = msgspec.structs.replace(
    UBUNTU,
    host=msgspec.structs.replace(UBUNTU.host, wsl=2),
    windows=Windows(profile="/mnt/c/Users/José Núñez", memory_bytes=64 << 30),
    wsl=Wsl(
        linux_driver_packages=("libnvidia-compute-550", "nvidia-utils-550"),
        wsl_conf={"automount.options": "uid=1000"},
    ),
)
ON_WINDOWS = Machine(
    host=Host(os="windows", release="10.0.26100"),
    python=r"C:\ada\.venv\Scripts\python.exe",
    environments=(Environment(python=r"C:\ada\.venv\Scripts\python.exe", kind="uv"),),
    windows=Windows(profile=r"C:\Users\ada"),
)
MACHINES = {"ubuntu": UBUNTU, "wsl": UNDER_WSL, "windows": ON_WINDOWS}

# Beyond a shell: root, removal, restarts, and files outside of the environment.
UNSAFE = re.compile(
    r"\bsudo\b|\b(?:apt|apt-get|dpkg|snap|conda|pip|uv pip) (?:\S+ )*(?:remove|uninstall|purge)\b"
    r"|--shutdown|\breboot\b|\bshutdown\b|systemctl|\b(?:uv|python3? -m) venv\b|\bwinget\b"
    r"|\breg add\b"
    r"|\brm\b|\bkill\b|\bmv\b|\btee\b|docker (?:system|restart)|\bconda (?:install|create|config)\b"
)


def diagnoses_of_texts() -> Iterator[tuple[str, Machine, Diagnosis]]:
    """Those of every text, read on three machines."""
    for path in sorted((CASES / "doctor").glob("*.toml")):
        for case in tomllib.loads(path.read_text(encoding="utf-8"))["case"]:
            found = diagnose(case_from_text([case["text"].encode()], RULESET), RULESET)
            for name, machine in MACHINES.items():
                yield f"{case['name']} on {name}", machine, with_plans(found, machine, "ada")


def diagnoses_of_machines() -> Iterator[tuple[str, Machine, Diagnosis]]:
    """Those of every machine, healthy or not."""
    healthy: dict[str, Machine] = {}
    for path in sorted((CASES / "machines").glob("*.json")):
        case = json.loads(path.read_text(encoding="utf-8"))
        system = RecordedSystem(msgspec.convert(case["recording"], SystemRecording))
        healthy[path.stem] = examine(system).machine
    faults = tomllib.loads((CASES / "machines" / "faults.toml").read_text(encoding="utf-8"))["case"]
    ill = {f"{fault['base']} with {fault['rule']}": with_fault(healthy[fault["base"]], fault)
           for fault in faults}  # fmt: skip
    for name, machine in (healthy | ill).items():
        yield name, machine, with_plans(judge(machine).diagnosis, machine, "ada")


def with_fault(machine: Machine, fault: dict[str, Any]) -> Machine:
    """A machine with other facts; see test_faults.py."""
    facts = json.loads(msgspec.json.encode(machine))
    for path, value in {**dict.fromkeys(fault.get("unknown", ())), **fault["facts"]}.items():
        *parts, last = path.split(".")
        place = facts
        for part in parts:
            place = place[int(part)] if isinstance(place, list) else place[part]
        place[last] = value
    return msgspec.convert(facts, Machine)


@pytest.fixture(scope="module")
def fixes() -> list[tuple[str, str | None, Fix]]:
    """All fixes that any rule gives: where, for which interpreter, and the fix."""
    return [
        (f"{finding.rule}: {place}", machine.python, fix)
        for place, machine, found in chain(diagnoses_of_texts(), diagnoses_of_machines())
        for finding in found.findings
        for fix in finding.fixes
    ]


def test_safe_means_safe(fixes: list[tuple[str, str | None, Fix]]) -> None:
    for place, python, fix in fixes:
        if fix.safety != "safe":
            continue
        assert not [one for one in fix.commands if UNSAFE.search(one)], place
        assert not fix.edits, place
        for step in fix.plan.steps if fix.plan else ():
            assert step.safety == "safe", place
            assert not step.needs_root and not step.removes_packages and not step.restarts, place
            # Of all actions, only this one stays in the environment asked about.
            assert isinstance(step.action, InstallPackages), place
            assert step.action.python == python, place


def test_fix_with_commands_says_what_it_changes(fixes: list[tuple[str, str | None, Fix]]) -> None:
    silent = {
        place.partition(":")[0]
        for place, _, fix in fixes
        if fix.safety != "manual" and (fix.commands or fix.edits) and not fix.changes
    }
    assert silent == set()
    for place, _, fix in fixes:
        for step in fix.plan.steps if fix.plan else ():
            assert step.changes and step.text, place


def test_every_step_tells_the_truth(fixes: list[tuple[str, str | None, Fix]]) -> None:
    for place, _, fix in fixes:
        for step in fix.plan.steps if fix.plan else ():
            words = " ".join(step.action.argv if isinstance(step.action, RunProgram) else ())
            if "wsl.exe" in words:
                assert step.restarts == "wsl" and step.safety == "ask", place
                assert ("wsl.exe", "--list", "--running") in step.shows, place
            if "apt-get" in words:
                assert step.needs_root and any("--simulate" in argv for argv in step.shows), place
            assert step.removes_packages == ("remove" in words.split() or _removes(step)), place
            assert not re.search(r"sudo|modprobe|dkms|initramfs|mokutil|grub|reboot", words), place


def _removes(step: PlanStep) -> bool:
    return isinstance(step.action, InstallPackages) and step.action.words[0] == "uninstall"


def test_plan_of_every_fix_survives_json(fixes: list[tuple[str, str | None, Fix]]) -> None:
    plans = [fix.plan for _, _, fix in fixes if fix.plan]
    assert len({plan.goal for plan in plans}) > 30
    again = msgspec.json.decode(msgspec.json.encode(plans), type=list[Plan])
    assert again == plans


def planned(fix: Fix, machine: Machine = UBUNTU, certainty: str = "decided") -> Fix:
    """The fix as it is planned on a machine."""
    finding = Finding(rule="a-rule", severity="error", problem="", fixes=(fix,),
                      certainty=certainty)  # type: ignore[arg-type]  # fmt: skip
    return with_plans(Diagnosis(findings=(finding,)), machine, "ada").findings[0].fixes[0]


def asked(*commands: str, **more: object) -> Fix:
    """A fix that asks first."""
    return Fix(text="mend it", safety="ask", commands=commands, changes="x", **more)  # type: ignore[arg-type]


def actions(fix: Fix) -> list[object]:
    return [step.action for step in fix.plan.steps] if fix.plan else []


def test_packages_go_into_the_environment_asked_about() -> None:
    fix = planned(asked("python -m pip install --force-reinstall 'numpy<2'"))
    words = ("install", "--force-reinstall", "numpy<2")
    assert actions(fix) == [InstallPackages(python=PYTHON, words=words)]
    assert fix.safety == "safe"
    assert planned(asked("pip install x"), certainty="possible").safety == "ask"
    assert planned(asked("pip uninstall jax", "pip install 'jax[cuda12]'")).safety == "ask"


def test_packages_of_the_system_are_left_alone() -> None:
    for kind in ("system", "conda"):
        changed = msgspec.structs.replace(ENVIRONMENT, kind=kind)
        machine = msgspec.structs.replace(UBUNTU, environments=(changed,))
        assert planned(asked("pip install x"), machine).plan is None


@pytest.mark.parametrize(
    "command",
    [
        "pip install <package>", "export A=1", "sudo apt install x | tee log", "sudo reboot",
        "pip install $(cat names)", "sudo modprobe nvidia", "wsl --install",
        "wsl --set-version x 2", "sudo snap remove docker", "sudo apt-get install 'unclosed",
        "docker run IMAGE",
        "sudo rm -rf /", "sudo rm /home/x", "pip download x",
        "notepad $env:USERPROFILE\\.wslconfig", "sudo update-initramfs -u",
        "reg add HKLM /v x", "sudo apt-get upgrade", "sudo", "", "pip install --user x",
        "pip install --target=/x x", "sudo ubuntu-drivers install", "sudo apt-mark hold x",
        "sudo ip link delete x",
    ],
)  # fmt: skip
def test_what_is_not_certain_has_no_plan(command: str) -> None:
    assert planned(asked(command)).plan is None
    assert planned(asked("sudo apt-get install gcc", command, where="linux")).plan is None


def test_alternatives_are_no_plan() -> None:
    index = "pip install torch --index-url https://download.pytorch.org/whl/"
    assert planned(asked(f"{index}cu130")).plan is not None
    assert planned(asked(f"{index}cu130", f"{index}cu126")).plan is None


def test_looking_alone_is_no_plan() -> None:
    assert planned(asked("nvidia-smi -L", "cat /etc/resolv.conf")).plan is None


def test_apt_is_simulated_and_undone() -> None:
    fix = asked("sudo apt-get install python3-dev", where="linux",
                undo="sudo apt-get remove python3-dev")  # fmt: skip
    step = planned(fix).plan.steps[0]  # type: ignore[union-attr]
    assert step.needs_root and step.undo == ("apt-get", "remove", "--yes", "python3-dev")
    assert step.shows == (("apt-get", "--simulate", "install", "python3-dev"),)
    assert step.done_if is not None
    fedora = msgspec.structs.replace(UBUNTU, host=Host(os="linux", distribution="Fedora Linux 41"))
    assert planned(fix, fedora).plan is None


def test_driver_inside_wsl_is_removed_by_its_packages() -> None:
    command = "sudo apt-get remove --purge '^nvidia-(driver|utils).*' '^libnvidia-.*'"
    fix = planned(asked(f"{command} --simulate", command, where="wsl"), UNDER_WSL)
    assert fix.plan is not None and fix.safety == "ask"
    (step,) = fix.plan.steps
    names = ("libnvidia-compute-550", "nvidia-utils-550")
    assert isinstance(step.action, RunProgram)
    assert step.action.argv == ("apt-get", "--purge", "remove", "--yes", *names)
    assert step.removes_packages and step.undo == ("apt-get", "install", "--yes", *names)
    bare = msgspec.structs.replace(UNDER_WSL, wsl=Wsl())
    assert planned(asked(command, where="wsl"), bare).plan is None


def test_edit_of_windows_names_the_file_of_whoever_is_logged_in() -> None:
    edit = Edit(file=WSLCONFIG, form="ini", entries=(Entry(place=("wsl2", "swap"), value="0"),))
    fix = asked("notepad x", "wsl --shutdown", edits=(edit,), where="powershell")
    steps = planned(fix, UNDER_WSL).plan.steps  # type: ignore[union-attr]
    assert isinstance(steps[0].action, Edit) and steps[1].restarts == "wsl"
    assert steps[0].action.file == "/mnt/c/Users/José Núñez/.wslconfig"
    assert (steps[0].where, steps[0].needs_root) == ("windows", False)
    on_windows = planned(fix, ON_WINDOWS).plan
    assert on_windows is not None and isinstance(on_windows.steps[0].action, Edit)
    assert on_windows.steps[0].action.file == r"C:\Users\ada\.wslconfig"
    unknown = msgspec.structs.replace(UNDER_WSL, windows=Windows())
    assert planned(fix, unknown).plan is None
    assert planned(fix, UBUNTU).plan is None


def test_docker_is_reported_of_the_runtime_by_an_edit() -> None:
    fix = asked("sudo nvidia-ctk runtime configure --runtime=docker",
                "sudo systemctl restart docker", where="host")  # fmt: skip
    steps = planned(fix).plan.steps  # type: ignore[union-attr]
    assert isinstance(steps[0].action, Edit) and steps[0].needs_root
    assert steps[1].restarts == "docker" and ("docker", "ps") in steps[1].shows
    # Undone, the file is as before, and only another restart makes Docker read it.
    assert steps[1].undo == ("systemctl", "restart", "docker")


def test_groups_are_joined_one_by_one() -> None:
    fix = planned(asked("sudo usermod -aG video,render $USER", "newgrp video", where="host"))
    assert [one.argv for one in actions(fix)] == [  # type: ignore[attr-defined]
        ("usermod", "-aG", "video", "ada"), ("usermod", "-aG", "render", "ada"),
    ]  # fmt: skip
    assert [step.undo for step in fix.plan.steps] == [  # type: ignore[union-attr]
        ("gpasswd", "-d", "ada", "video"), ("gpasswd", "-d", "ada", "render"),
    ]  # fmt: skip


def test_profile_of_a_shell_gets_a_block() -> None:
    block = Block(file="~/.bashrc", name="cuda", lines=("export A=1",))
    fix = planned(Fix(text="", safety="ask", edits=(block,), changes="x", where="wsl"), UNDER_WSL)
    assert actions(fix) == [block] and fix.safety == "ask"


def finding(rule: str, *fixes: Fix, severity: str = "error") -> Finding:
    return Finding(rule=rule, severity=severity, problem="", fixes=fixes)  # type: ignore[arg-type]


def test_repairs_take_the_safest_once_and_restart_last() -> None:
    restart = planned(asked("wsl --shutdown", where="powershell"), UNDER_WSL)
    install, remove = planned(asked("pip install a")), planned(asked("pip uninstall a"))
    reported = Fix(text="think")
    findings = (
        finding("one-rule", restart), finding("two-rule", remove, install),
        finding("three-rule", restart), finding("four-rule", reported),
        finding("five-rule", install, severity="note"),
    )  # fmt: skip
    found = repairs(findings)
    assert [one.rules for one in found] == [("two-rule",), ("one-rule", "three-rule")]
    assert [one.safety for one in found] == ["safe", "ask"]
    assert [one.rule for one in by_hand(findings)] == ["four-rule"]
    after = (finding("four-rule"), finding("six-rule"))
    result = mended(findings, after)
    assert result.gone == ("one-rule", "two-rule", "three-rule", "five-rule")
    assert (result.remaining, result.new) == (("four-rule",), ("six-rule",))


def test_a_stale_forward_alone_is_removed_and_can_be_made_again() -> None:
    for place, _, found in diagnoses_of_machines():
        if place.endswith("wsl-portproxy-stale"):
            finding = next(one for one in found.findings if one.rule == "wsl-portproxy-stale")
            plan = finding.fixes[0].plan
            assert plan is not None and len(plan.steps) == 1
            line = " ".join(plan.steps[0].action.argv)  # type: ignore[union-attr]
            assert "portproxy delete v4tov4 listenaddress=0.0.0.0 listenport=8000" in line
            undo = " ".join(plan.steps[0].undo or ())
            assert "portproxy add v4tov4 listenaddress=0.0.0.0 listenport=8000" in undo
            assert "connectaddress=172.20.1.3 connectport=8000" in undo
            return
    raise AssertionError("no machine with a stale forward")
