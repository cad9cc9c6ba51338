"""`--manager conda` on a machine without conda: micromamba is downloaded, verified, and used."""

from __future__ import annotations

import hashlib
import json
import platform
import sys
from pathlib import Path

import pytest
from support.fake_home import PYTHON, Home

from flatout.cli.main import run
from flatout.errors import RunFailed, UsageError
from flatout.schema.package_indexes import Indexes
from flatout.setup.env import context
from flatout.setup.model.environment_request import EnvironmentRequest
from flatout.setup.packages import micromamba
from flatout.setup.packages.installers import Conda, Pip, failed_install
from flatout.system.http import opener_for

# Makes a prefix as micromamba does, with what a venv has in place of conda-forge's Python.
PROGRAM = f"""#!/bin/sh
while [ "$1" != --prefix ]; do shift; done
test -f "$2/conda-meta/history" || exit 1
echo "$MAMBA_ROOT_PREFIX" >"$2/root-prefix"
exec {sys.executable} -m venv --without-pip "$2"
"""
POSIX = pytest.mark.skipif(sys.platform == "win32", reason="the made-up program is one for sh")


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    """A machine with neither conda nor mamba, whose micromamba is a made-up one, from a folder."""
    home = Home(tmp_path)
    for name, value in home.environment().items():
        monkeypatch.setenv(name, value)
    for name in ("XDG_DATA_HOME", "XDG_CACHE_HOME", "MAMBA_EXE", "CONDA_EXE"):
        monkeypatch.delenv(name, raising=False)
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:/usr/bin:/bin")
    release = micromamba.Release(
        "micromamba-here", hashlib.sha256(PROGRAM.encode()).hexdigest(), len(PROGRAM)
    )
    place = (sys.platform, platform.machine())
    monkeypatch.setattr(micromamba, "_RELEASES", {place: release})
    folder = tmp_path / "mirror" / "2.9.0-0"
    folder.mkdir(parents=True)
    (folder / "micromamba-here").write_text(PROGRAM)
    monkeypatch.setenv("FLATOUT_MICROMAMBA_MIRROR", (tmp_path / "mirror").as_uri())
    return home


WORDS = ("setup", "jax", "--cpu", "--python", PYTHON, "--manager", "conda")


@POSIX
def test_environment_is_made_with_a_micromamba_of_flatouts_own(
    bare: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run([*WORDS, "--dry-run", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    first = plan["steps"][0]
    assert first["text"].startswith("download micromamba 2.9.0")
    assert first["undo"] == f"rm -r {micromamba.own_path().parent}"
    assert not micromamba.own_path().exists()
    assert run([*WORDS, "--yes"]) == 0
    made = bare.environments / "jax"
    # Beside flatout's other tools, and its packages in flatout's cache.
    assert micromamba.own_path() == bare.folder / ".local/share/flatout/tools/micromamba/micromamba"
    assert (made / "root-prefix").read_text().strip() == str(bare.cache / "micromamba")
    capsys.readouterr()
    # The next environment takes it as it is.
    assert run([*WORDS, "--name", "second", "--dry-run", "--json"]) == 0
    (plan,) = json.loads(capsys.readouterr().out)["plans"]
    assert "micromamba" not in plan["steps"][0]["text"]


@POSIX
def test_a_micromamba_that_was_changed_is_not_run(
    bare: Home, capsys: pytest.CaptureFixture[str]
) -> None:
    (bare.folder / "mirror/2.9.0-0/micromamba-here").write_text(PROGRAM + "rm -r /\n")
    assert run([*WORDS, "--yes"]) == 1
    said = capsys.readouterr().err
    assert "could not download micromamba" in said and "SHA-256" in said
    assert not micromamba.own_path().exists() and not (bare.environments / "jax").exists()


def test_no_conda_and_no_network_is_refused(bare: Home) -> None:
    request = EnvironmentRequest(manager="conda", is_offline=True)
    with pytest.raises(UsageError, match="--manager conda") as refused:
        context.read_context(request, context.read_machine(), may_get_uv=False)
    assert "--offline was given" in (refused.value.because or "")


def test_no_conda_on_a_system_without_micromamba_is_refused(
    bare: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(micromamba, "_RELEASES", {})
    with pytest.raises(UsageError) as refused:
        context.read_context(
            EnvironmentRequest(manager="conda"), context.read_machine(), may_get_uv=False
        )
    assert "does not support this system" in (refused.value.because or "")


@POSIX
def test_a_conda_that_is_here_is_taken(bare: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    own = bare.folder / "miniforge" / "conda"
    own.parent.mkdir()
    own.write_text("#!/bin/sh\n")
    own.chmod(0o755)
    assert micromamba.find_conda() is None
    # `conda init` defines a function in the shell; the program need not be on the path.
    monkeypatch.setenv("CONDA_EXE", str(own))
    assert micromamba.find_conda() == str(own)
    request = EnvironmentRequest(manager="conda", is_offline=True)
    found = context.read_context(request, context.read_machine(), may_get_uv=False)
    assert found.micromamba is None and found.program.name == "conda"
    monkeypatch.delenv("CONDA_EXE")
    (bare.folder / "bin/mamba").symlink_to(own)
    assert micromamba.find_conda() == str(bare.folder / "bin/mamba")


def test_every_release_has_a_whole_checksum() -> None:
    for (system, _), release in micromamba._RELEASES.items():
        assert len(bytes.fromhex(release.sha256)) == 32 and release.size_bytes > 10**7
        assert release.name.endswith(".exe") == (system == "win32")


def test_download_that_fails_says_what_to_do(bare: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLATOUT_MICROMAMBA_MIRROR", "http://127.0.0.1:9")
    release = micromamba.release_here()
    assert release is not None
    with pytest.raises(RunFailed) as failed:
        list(micromamba.fetch(release, opener_for(Indexes())))
    assert failed.value.rule == "download-failed"
    assert "FLATOUT_MICROMAMBA_MIRROR" in (failed.value.fix or "")


def test_certificates_of_a_company_are_handed_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUESTS_CA_BUNDLE", raising=False)
    indexes = Indexes(certificates=("/etc/ca.pem",))
    conda = Conda("/opt/conda", Pip(sys.executable, indexes), indexes)
    assert conda._environment["REQUESTS_CA_BUNDLE"] == "/etc/ca.pem"


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("critical libmamba Download error (6) Could not resolve hostname: Could not resolve host: "
         "conda.anaconda.org", "index-not-reachable"),
        ("Download error (60) SSL peer certificate or SSH remote key was not OK "
         "[https://conda.anaconda.org/conda-forge/noarch/repodata.json.zst]",
         "certificate-not-trusted"),
        ("error libmamba Could not solve for environment specs", "installer-failed"),
    ],
)  # fmt: skip
def test_what_micromamba_says_is_understood(said: str, rule: str) -> None:
    assert failed_install(said, None, "conda", "creating the environment").rule == rule
