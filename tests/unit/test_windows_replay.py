"""Plans for Windows, replayed against a winget and a netsh that answer as the real ones do.

How they answer: microsoft/winget-cli, returnCodes.md, WorkflowBase.cpp (HandleSourceAgreements asks
about every source that is searched), PromptFlow.cpp, InstallFlow.cpp (ReportInstallerResult:
REBOOT_REQUIRED_TO_FINISH counts as done) and issue 4262 (an installed version, another one too, is
brought up to date in place of being joined by the one that is asked for); microsoft/winget-pkgs,
manifests of Nvidia.CUDA and of Microsoft.VisualStudio.2022.BuildTools (what 3010, 1641 and 5004 of
its installer mean); Visual Studio's installer: without --norestart it restarts Windows by itself
(learn.microsoft.com/visualstudio/install/use-command-line-parameters-to-install-visual-studio).
netsh prints its table in columns and ends with 1 where it may not change it, or is to delete what
is not there (learn.microsoft.com/windows-server/administration/windows-commands/netsh-portproxy).
dism is run by wsl.exe alone (3010: see test_setup_replay.py), and never by flatout.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType

import msgspec
import pytest

from flatout.compat.tables import shipped_tables
from flatout.doctor.api import judge
from flatout.doctor.fix.plan import with_plans
from flatout.errors import RunFailed
from flatout.schema.machine import Machine
from flatout.schema.plan import Plan, PlanStep, Prints, RunProgram
from flatout.setup.host.toolkit import plan_toolkit
from flatout.system import edit_file
from flatout.system.changes import actions
from flatout.system.changes.exit_codes import ended_text
from flatout.system.command import Completed


def _cases() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "setup_plans", Path(__file__).with_name("setup_plans.py")
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CASES = _cases()
CUDA, TOOLS = "Nvidia.CUDA", "Microsoft.VisualStudio.2022.BuildTools"
# What there is, oldest first.
PACKAGES = {
    CUDA: ("11.3", "11.8", "12.0.1", "12.1", "12.2.2", "12.6", "12.8", "12.9", "13.0", "13.4"),
    TOOLS: ("17.14.41",),
    "Microsoft.VisualStudio.2019.BuildTools": ("16.11.32",),
}
OPTIONS = {"--exact": 0, "--id": 1, "--version": 1, "--source": 1, "--accept-source-agreements": 0,
           "--accept-package-agreements": 0, "--disable-interactivity": 0, "--force": 0,
           "--override": 1, "--silent": 0}  # fmt: skip
WRONG_WORDS, NO_PACKAGE, NO_VERSION, NOT_NEWER = 0x8A150002, 0x8A150014, 0x8A150017, 0x8A15002B
NO_ANSWER, SOURCE_TERMS, WHICH_VERSION = 0x8A150042, 0x8A150046, 0x8A150016
RESTARTING, CANCELLED, FAILED = 0x8A15010B, 0x8A15010C, 0x8A150006


@dataclass
class Windows:
    """A Windows with its winget, which is asked without a keyboard: nobody can answer it.

    installed: versions, by package. has_agreed: to the terms of winget's sources, once before.
    ends_with: exit code of the installers. is_restart_due: they want Windows restarted.
    """

    installed: dict[str, list[str]] = field(default_factory=dict)
    has_agreed: bool = False
    ends_with: int = 0
    is_restart_due: bool = False
    has_restarted: bool = False

    def run(self, argv: Sequence[str], *_: object, **__: object) -> Completed:
        program, verb, *words = argv
        assert program == "winget"
        given: dict[str, str] = {}
        rest = list(words)
        while rest:
            option = rest.pop(0)
            if option not in OPTIONS:
                return Completed(exit_code=WRONG_WORDS)
            given[option] = rest.pop(0) if OPTIONS[option] else ""
        code = self._install(given) if verb == "install" else self._uninstall(given)
        return Completed(stdout="Ein Fehler ist aufgetreten.", exit_code=code)

    def _terms(self, given: dict[str, str]) -> int:
        # The Microsoft Store's are asked about; those of winget's own source are not.
        if given.get("--source") == "winget" or self.has_agreed:
            return 0
        if "--accept-source-agreements" in given:
            self.has_agreed = True
            return 0
        return SOURCE_TERMS if "--disable-interactivity" in given else NO_ANSWER

    def _install(self, given: dict[str, str]) -> int:
        if code := self._terms(given):
            return code
        package = given["--id"]
        if package not in PACKAGES:
            return NO_PACKAGE
        version = given.get("--version", PACKAGES[package][-1])
        if version not in PACKAGES[package]:
            return NO_VERSION
        there = self.installed.setdefault(package, [])
        order = PACKAGES[package].index
        if there and "--force" not in given and order(version) <= max(map(order, there)):
            return NOT_NEWER
        return self._installer(package, version, given["--override"])

    def _installer(self, package: str, version: str, override: str) -> int:
        code = self.ends_with
        if self.is_restart_due:
            if "--norestart" not in override and "-n" not in override.split():
                self.has_restarted = True
                code = 1641
            else:
                code = 3010
        if code in (0, 3010, 1641) and version not in self.installed[package]:
            self.installed[package].append(version)
        return {0: 0, 3010: 0, 1641: RESTARTING, 5004: CANCELLED}.get(code, FAILED)

    def _uninstall(self, given: dict[str, str]) -> int:
        there = self.installed.get(given["--id"], [])
        if len(there) > 1 and "--version" not in given:
            return WHICH_VERSION
        wanted = given.get("--version", there[0] if there else "")
        if wanted not in there:
            return NO_PACKAGE
        there.remove(wanted)
        return 0


@pytest.fixture
def windows(monkeypatch: pytest.MonkeyPatch) -> Windows:
    made = Windows()
    monkeypatch.setattr(edit_file, "run_as_root", made.run)
    return made


def plan(cuda: str) -> Plan:
    here: Machine = CASES._with(CASES.WINDOWS, gpus=(CASES.card("GeForce RTX 4090", "8.9"),))
    return plan_toolkit(here, cuda, "", shipped_tables())


def steps_of(cuda: str) -> list[PlanStep]:
    """Those that winget does, with what brings a visible change."""
    return [one for one in plan(cuda).steps if isinstance(one.action, RunProgram)
            and one.action.argv[0] == "winget"]  # fmt: skip


def carry_out(cuda: str) -> None:
    for step in steps_of(cuda):
        assert isinstance(step.action, RunProgram)
        actions.run_command(step.action, step, None)  # type: ignore[arg-type]  # It needs none.


@pytest.mark.parametrize("cuda", ["11.8", "12.0", "12.2", "12.6", "12.8", "13.0"])
def test_toolkit_on_a_fresh_windows_is_installed_without_a_question(
    windows: Windows, cuda: str
) -> None:
    carry_out(cuda)
    (version,) = windows.installed[CUDA]
    assert version.startswith(cuda) and not windows.has_restarted


def test_older_toolkit_joins_the_newer_one_and_is_taken_back_alone(windows: Windows) -> None:
    windows.installed[CUDA] = ["13.4"]
    carry_out("12.6")
    assert windows.installed[CUDA] == ["13.4", "12.6"]
    undo = steps_of("12.6")[-1].undo
    assert undo is not None and windows.run(undo).exit_code == 0
    assert windows.installed[CUDA] == ["13.4"]


def test_toolkit_that_is_there_is_not_in_the_way(windows: Windows) -> None:
    windows.installed = {CUDA: ["12.6"], TOOLS: ["17.14.41"]}
    carry_out("12.6")
    assert windows.installed == {CUDA: ["12.6"], TOOLS: ["17.14.41"]}


def test_restart_that_an_installer_wants_is_left_to_the_person(windows: Windows) -> None:
    windows.is_restart_due = True
    carry_out("12.6")
    assert not windows.has_restarted and windows.installed[CUDA] == ["12.6"]


def test_installer_that_was_cancelled_is_said_in_words(windows: Windows) -> None:
    windows.ends_with = 5004
    with pytest.raises(RunFailed) as failed:
        carry_out("12.6")
    assert failed.value.rule == "step-failed"
    assert "0x8A15010C: it was canceled" in (failed.value.because or "")


def test_exit_codes_have_their_meaning_with_and_without_a_sign() -> None:
    for code in (NOT_NEWER, NOT_NEWER - 2**32):
        reported = ended_text(("winget", "install"), code)
        assert reported == ("it ended with exit code 0x8A15002B: it is installed and up to date")
    assert ended_text(("winget.exe", "install"), 3010).endswith("Windows must restart to finish it")
    assert ended_text(("winget", "install"), 7) == "it ended with exit code 7"
    assert ended_text(("apt-get", "install"), 100) == "it ended with exit code 100"


def test_every_step_of_winget_names_what_is_agreed_to() -> None:
    for step in steps_of("12.6"):
        assert isinstance(step.action, RunProgram)
        assert "--accept-package-agreements" in step.action.argv
        assert "you agree to its license" in step.changes


TABLE = {("0.0.0.0", "8000"): ("172.20.1.3", "8000"), ("0.0.0.0", "80"): ("192.168.1.9", "80"),
         ("127.0.0.1", "9000"): ("172.20.1.3", "9000")}  # fmt: skip


@dataclass
class Forwards:
    """netsh's table of forwards, behind Windows' question for the administrator."""

    table: dict[tuple[str, str], tuple[str, str]]
    is_allowed: bool = True

    def powershell(self, argv: Sequence[str]) -> int:
        line = argv[-1]
        if found := re.fullmatch(
            r"if \(netsh\.exe interface portproxy show v4tov4 \| Select-String '(.+)'\) "
            r"\{ exit 1 \}", line,
        ):  # fmt: skip
            return int(any(re.search(found[1], one) for one in self.shown()))
        found = re.fullmatch(
            r"try \{ exit \(Start-Process netsh\.exe -ArgumentList '([^']+)' -Verb RunAs -Wait "
            r"-PassThru -WindowStyle Hidden -ErrorAction Stop\)\.ExitCode \} "
            r'catch \{ "\$_"; exit 1 \}', line,
        )  # fmt: skip
        assert found, f"not known here: {line}"
        return self.netsh(found[1].split()) if self.is_allowed else 1

    def netsh(self, words: Sequence[str]) -> int:
        given = dict(word.split("=", 1) for word in words[4:])
        place = given["listenaddress"], given["listenport"]
        if list(words[:4]) == ["interface", "portproxy", "add", "v4tov4"]:
            self.table[place] = given["connectaddress"], given["connectport"]
            return 0
        assert list(words[:4]) == ["interface", "portproxy", "delete", "v4tov4"]
        return int(self.table.pop(place, None) is None)

    def shown(self) -> list[str]:
        head = ["", "Listen on ipv4:             Connect to ipv4:", ""]
        return head + [
            f"{address:<16}{port:<12}{to_address:<16}{to_port}"
            for (address, port), (to_address, to_port) in self.table.items()
        ]


def removals() -> list[PlanStep]:
    """The doctor's steps for what in the table leads into a WSL that has moved."""
    base: Machine = CASES.machine_of(CASES.WSL)
    assert base.windows is not None
    stale = tuple(f"{'/'.join(place)} {'/'.join(to)}" for place, to in TABLE.items()
                  if to[0].startswith("172."))  # fmt: skip
    windows = msgspec.structs.replace(base.windows, stale_forwards=stale)
    here = msgspec.structs.replace(base, windows=windows)
    found = with_plans(judge(here).diagnosis, here, "ada")
    finding = next(one for one in found.findings if one.rule == "wsl-portproxy-stale")
    plan = finding.fixes[0].plan
    assert plan is not None
    return list(plan.steps)


def test_stale_forwards_alone_are_removed_and_come_back() -> None:
    forwards = Forwards(dict(TABLE))
    steps = removals()
    assert len(steps) == 2
    for step in steps:
        assert (
            isinstance(step.action, RunProgram) and isinstance(step.done_if, Prints) and step.undo
        )
        assert forwards.powershell(step.done_if.argv) == 1
        assert forwards.powershell(step.action.argv) == 0
        # Carried out once more, there is nothing to do: netsh itself would fail.
        assert forwards.powershell(step.done_if.argv) == 0
        assert forwards.powershell(step.action.argv) == 1
    # Port 80 begins like 8000 and stays; so does what leads elsewhere.
    assert forwards.table == {("0.0.0.0", "80"): ("192.168.1.9", "80")}
    for step in steps:
        assert step.undo is not None and forwards.powershell(step.undo) == 0
    assert forwards.table == TABLE


def test_forward_stays_where_the_administrator_says_no() -> None:
    forwards = Forwards(dict(TABLE), is_allowed=False)
    (step, _) = removals()
    assert isinstance(step.action, RunProgram) and forwards.powershell(step.action.argv) == 1
    assert forwards.table == TABLE
