"""The system-wide `flatout.toml`: what it settles, what it forbids, and what is wrong in one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from flatout.cli.main import run
from flatout.doctor import api as doctor_api
from flatout.doctor.api import without_forbidden
from flatout.doctor.model.diagnosis import Diagnosis
from flatout.errors import RunFailed, UsageError
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Gpu, Host, Machine
from flatout.schema.plan import Plan
from flatout.setup.env.context import read_context
from flatout.setup.host import api as host_api
from flatout.setup.model.environment_request import EnvironmentRequest
from flatout.setup.model.host_plan import HostPlanRequest
from flatout.system.paths import environments_folder
from flatout.system.site_policy import read_site
from flatout.system.store import datasets
from flatout.system.store.datasets import DataFile, DataSet

MIRRORS = """
[mirrors]
packages = "https://packages.example.com/simple"
torch = "https://packages.example.com/torch"
"""


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "flatout.toml"
    for name in ("PIP_INDEX_URL", "UV_INDEX_URL", "UV_DEFAULT_INDEX", "FLATOUT_ENVIRONMENTS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    monkeypatch.setenv("FLATOUT_SITE", str(path))
    return path


def test_site_when_there_is_none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("FLATOUT_SITE", raising=False)
    assert read_site().settings == ()
    monkeypatch.setenv("FLATOUT_SITE", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="cannot be used"):
        read_site()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[mirrors\n", "not valid TOML"),
        ("[mirror]\n", "`mirror`"),
        ("file = 1\n", "`file`"),
        ("[mirrors]\nconda = 'https://x'\n", "`conda` - at `mirrors`"),
        ("[mirrors]\npackages = 'x'\n", "mirrors.packages must be an address"),
        ("[mirrors]\npackages = 1\n", "`mirrors.packages`"),
        ("[setup]\nmanager = 'poetry'\n", "'poetry' - at `setup.manager`"),
        ("[setup]\nfolder = 'here'\n", "setup.folder must be an absolute path"),
        ("[forbidden]\ngoals = ['everything']\n", "`forbidden.goals[0]`"),
        ("[forbidden]\nrules = ['docker-nvidia-toolkit-missin']\n", "did you mean"),
    ],
)
def test_site_when_something_is_wrong_in_it(site: Path, text: str, said: str) -> None:
    site.write_text(text)
    with pytest.raises(UsageError) as caught:
        doctor_api.read_site()
    assert caught.value.rule == "site-file-wrong"
    assert str(site) in caught.value.problem and said in str(caught.value.because)


def test_site_when_defaults_are_taken_from_it(
    site: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WHO", "me")
    site.write_text(f"{MIRRORS}[setup]\nfolder = '{tmp_path.as_posix()}/$WHO'\nmanager = 'pip'\n")
    ground = read_context(EnvironmentRequest(), Machine(), may_get_uv=False)
    assert ground.indexes.default == "https://packages.example.com/simple"
    assert ground.torch_mirror == "https://packages.example.com/torch"
    assert ground.program.name == "pip"
    assert all(str(site) in note for note in ground.notes) and len(ground.notes) == 3
    assert environments_folder() == tmp_path / "me"
    # What a person has settled wins over it, and what was typed over both.
    monkeypatch.setenv("PIP_INDEX_URL", "https://mine.example.com")
    own = read_context(EnvironmentRequest(), Machine(), may_get_uv=False)
    assert own.indexes.default == "https://mine.example.com"
    typed = EnvironmentRequest(mirrors=("packages=https://typed", "torch=https://t"), manager="pip")
    asked = read_context(typed, Machine(), may_get_uv=False)
    assert (asked.indexes.default, asked.torch_mirror) == ("https://typed", "https://t")
    assert asked.notes == ()


def test_site_names_where_data_is_asked_first(
    site: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_DATA_HOME", "LOCALAPPDATA"):
        monkeypatch.setenv(name, str(tmp_path))
    monkeypatch.delenv("FLATOUT_DATA", raising=False)
    site.write_text("[mirrors]\ndata = 'http://127.0.0.1:9/d'\n")
    file = DataFile(name="f", size_bytes=1, sha256="0")
    sets = {"x": DataSet(title="", files=(file,), licence="", source="", mirrors=())}
    with pytest.raises(RunFailed) as caught:
        list(datasets.fetch("x", sets))
    assert "127.0.0.1:9/d/x/f" in str(caught.value.because)


def test_site_when_a_fix_is_forbidden() -> None:
    fix = Fix(text="install it", safety="safe", plan=Plan(goal="g", steps=()))
    findings = tuple(Finding(rule=rule, severity="error", problem="p", fixes=(fix,))
                     for rule in ("one", "other"))  # fmt: skip
    reported = without_forbidden(Diagnosis(findings=findings), {"one"}, "forbidden by f: ask us")
    (first,), (second,) = (one.fixes for one in reported.findings)
    assert (first.safety, first.plan) == ("manual", None)
    assert first.text == "install it; forbidden by f: ask us"
    assert second == fix


def test_site_when_a_goal_is_forbidden(site: Path) -> None:
    machine = Machine(
        host=Host(os="linux", distribution="Ubuntu 24.04"),
        gpus=(Gpu(index=0, name="NVIDIA GeForce RTX 3070", compute_capability="8.6"),),
        driver="580.95.05",
    )
    site.write_text("")
    assert host_api.plan_host(HostPlanRequest(goal="toolkit"), machine).refusal is None
    site.write_text("[forbidden]\ngoals = ['toolkit']\nreason = 'ask us'\n")
    found = host_api.plan_host(HostPlanRequest(goal="toolkit"), machine)
    assert found.refusal == f"forbidden by {site}: ask us"
    assert {step.safety for step in found.plan.steps} == {"manual"}


def test_doctor_tells_what_is_settled(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site.write_text(MIRRORS)
    run(["doctor", "-v"])
    shown = capsys.readouterr().out
    assert f"set in {site}" in shown
    assert "mirrors torch = https://packages.example.com/torch" in shown


def test_site_that_is_wrong_ends_a_command(site: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site.write_text("[mirrors]\nx = 1\n")
    assert run(["setup", "--toolkit", "--json"]) == 2
    reported = capsys.readouterr()
    assert json.loads(reported.out)["error"]["rule"] == "site-file-wrong"
    assert "Traceback" not in reported.err
