"""What is read and written as text for environments: locks, requirements, reports, settings."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from flatout.errors import RunFailed, UsageError
from flatout.schema.environment import Pin
from flatout.schema.package_indexes import Indexes
from flatout.schema.shell_quoting import powershell_line
from flatout.setup.env.location import distro_drive
from flatout.setup.env.lock_file import LockFile, lock_text, parse_lock
from flatout.setup.env.requirement_files import from_conda, from_pyproject
from flatout.setup.env.wheels import is_for_cpu, parse_pylock, parse_report, supported_tags
from flatout.setup.model.environment_request import EnvironmentRequest
from flatout.setup.packages.installers import failed_install
from flatout.setup.packages.wheel_store import fetch
from flatout.system.http import opener_for
from flatout.system.pip_config import read_indexes

SHA = "a" * 64
LOCK = LockFile(
    framework="torch", python="3.12", platform="linux x86_64", cuda="cu126",
    index="https://download.pytorch.org/whl/cu126",
    pins=(Pin(name="torch", version="2.14.0+cu126", url="", sha256=SHA),
          Pin(name="numpy", version="2.3.1", url="", sha256="b" * 64)),
)  # fmt: skip


def test_lock_when_written_and_read() -> None:
    text = lock_text(LOCK)
    assert f"torch==2.14.0+cu126 \\\n    --hash=sha256:{SHA}\n" in text
    read = parse_lock(text, "here")
    assert read.pins == tuple(sorted(LOCK.pins, key=lambda pin: pin.name))
    assert (read.framework, read.cuda, read.index) == ("torch", "cu126", LOCK.index)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "torch==2.0\n",
        lock_text(LOCK).replace("# framework: torch\n", ""),
        lock_text(LOCK) + "-e git+https://example.org/x\n",
        lock_text(LOCK) + "click>=8\n",
    ],
)
def test_lock_when_it_is_none(text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_lock(text, "here")
    assert caught.value.rule == "not-a-lock"


def test_pyproject_gives_its_dependencies() -> None:
    found = from_pyproject('[project]\ndependencies = ["a>=1", "b[c]"]\n', "p")
    assert found.lines == ("a>=1", "b[c]")
    with pytest.raises(UsageError):
        from_pyproject("[tool.x]\n", "p")
    with pytest.raises(UsageError):
        from_pyproject("[project\n", "p")


def test_conda_file_gives_what_pip_can_install() -> None:
    document = {
        "name": "x",
        "dependencies": [
            "python=3.11", "conda-forge::numpy=1.26", "scipy>=1.11,<2", "pytorch",
            "cudatoolkit=11.8", "pandas==2.2.1=py311_0", {"pip": ["einops", "x @ file:///y"]},
        ],
    }  # fmt: skip
    found = from_conda(document, "e")
    assert found.python == "3.11"
    assert found.lines[:4] == ("numpy==1.26.*", "scipy>=1.11,<2", "torch", "pandas==2.2.1")
    assert found.lines[4:] == ("einops", "x @ file:///y")
    assert found.left_out == ("cudatoolkit=11.8",)
    assert found.notes == ("skipped, since only conda has it: cudatoolkit=11.8",)
    with pytest.raises(UsageError):
        from_conda(["a"], "e")


PYLOCK = """
lock-version = "1.0"
[[packages]]
name = "Some_Thing"
version = "1.2"
wheels = [
  { url = "https://x/some_thing-1.2-py3-none-any.whl", hashes = { sha256 = "aa" } },
  {url = "https://x/s-1-cp312-cp312-manylinux_2_17_x86_64.whl", hashes = {sha256 = "bb"}, size = 7},
]
[[packages]]
name = "local"
version = "3"
wheels = [{ path = "wheels/local-3-py3-none-any.whl", hashes = { sha256 = "cc" } }]
"""


def test_pylock_gives_the_best_wheel() -> None:
    tags = ["cp312-cp312-manylinux_2_17_x86_64", "py3-none-any"]
    first, second = parse_pylock(PYLOCK, "file:///tmp/here", tags)
    assert (first.name, first.sha256, first.size_bytes) == ("some-thing", "bb", 7)
    assert second.url == "file:///tmp/here/wheels/local-3-py3-none-any.whl"
    assert parse_pylock(PYLOCK, "file:///", tags[1:])[0].sha256 == "aa"


def test_pylock_when_no_wheel_fits() -> None:
    with pytest.raises(UsageError) as caught:
        parse_pylock(PYLOCK, "file:///", ["cp313-cp313-win_amd64"])
    assert caught.value.rule == "no-wheel"


def test_report_gives_what_pip_would_install() -> None:
    text = """{"install": [{"metadata": {"name": "Nvidia_X", "version": "1"}, "requested": true,
      "download_info": {"url": "https://x/y%2Bcpu.whl",
                        "archive_info": {"hashes": {"sha256": "q"}}}}]}"""
    (pin,) = parse_report(text)
    assert (pin.name, pin.sha256, pin.file) == ("nvidia-x", "q", "y+cpu.whl")
    assert not is_for_cpu([pin])


def test_supported_tags_are_of_the_wanted_python() -> None:
    tags = supported_tags((3, 12))
    assert any(tag.startswith("cp312-cp312-") for tag in tags)
    assert "py3-none-any" in tags
    assert not any(tag.startswith("cp313") for tag in tags)


def test_pip_settings_hold_for_uv(tmp_path: Path) -> None:
    file = tmp_path / "pip.conf"
    file.write_text(
        "[global]\nindex-url = https://mirror/simple\nextra-index-url = https://a/simple\n"
        "  file:///b/simple\n[install]\nfind_links = /wheels\ntrusted-host = mirror\n"
    )
    found = read_indexes({"PIP_CONFIG_FILE": str(file)})
    assert found.default == "https://mirror/simple"
    assert set(found.extra) >= {"https://a/simple", "file:///b/simple"}
    assert "/wheels" in found.find_links and "mirror" in found.trusted_hosts
    own = read_indexes({"PIP_CONFIG_FILE": str(file), "UV_DEFAULT_INDEX": "main=https://uv/simple",
                        "PIP_INDEX_URL": "https://variable/simple"})  # fmt: skip
    assert own.default == "https://uv/simple"
    variable = read_indexes(
        {"PIP_CONFIG_FILE": str(file), "PIP_INDEX_URL": "https://variable/simple"}
    )
    assert variable.default == "https://variable/simple"


DISTROS = r"""
HKEY_CURRENT_USER\Software\Microsoft\Windows\CurrentVersion\Lxss
    DefaultDistribution    REG_SZ    {1f}

HKEY_CURRENT_USER\Software\Microsoft\Windows\CurrentVersion\Lxss\{1f}
    State    REG_DWORD    0x1
    DistributionName    REG_SZ    Ubuntu-24.04
    BasePath    REG_SZ    \\?\D:\wsl\ubuntu

HKEY_CURRENT_USER\Software\Microsoft\Windows\CurrentVersion\Lxss\{2f}
    DistributionName    REG_SZ    Debian
    BasePath    REG_SZ    C:\Users\Jane Doe\AppData\Local\wsl
"""


@pytest.mark.parametrize(
    ("distro", "drive"), [("Ubuntu-24.04", "D:"), ("debian", "C:"), ("Arch", None), ("", None)]
)
def test_disk_of_a_distro_lies_where_windows_says(distro: str, drive: str | None) -> None:
    assert distro_drive(DISTROS, distro) == drive
    assert distro_drive("", distro) is None


def test_certificates_are_those_of_all_variables(tmp_path: Path) -> None:
    files = {name: str(tmp_path / name) for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")}
    for file in files.values():
        Path(file).touch()
    found = read_indexes({**files, "PIP_CONFIG_FILE": os.devnull, "CURL_CA_BUNDLE": "/not/there"})
    assert found.certificates == tuple(files.values())


def test_wheel_without_a_hash_is_refused_before_it_is_downloaded() -> None:
    pin = Pin(name="a", version="1", url="http://127.0.0.1:9/a-1-py3-none-any.whl", sha256="")
    with pytest.raises(RunFailed) as caught:
        list(fetch([pin], opener_for(Indexes())))
    assert caught.value.rule == "wheel-without-hash"


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (("uv", "tool", "uninstall", "flatout"), "uv tool uninstall flatout"),
        ((r"C:\Users\J D\uv.exe", "x"), r"& 'C:\Users\J D\uv.exe' x"),
        (("Remove-Item", r"C:\O'Hara\f"), r"Remove-Item 'C:\O''Hara\f'"),
    ],
)
def test_command_is_written_as_powershell_takes_it(argv: tuple[str, ...], line: str) -> None:
    assert powershell_line(argv) == line


def test_requirements_of_with_are_split_at_their_commas() -> None:
    request = EnvironmentRequest(packages=("b>=1,<2, a[x,y]", "c"))
    assert request.requirements == ("a[x,y]", "b>=1,<2", "c")


@pytest.mark.parametrize(
    ("request_", "num", "rule"),
    [
        (EnvironmentRequest(folder="x"), 2, "options-exclude-each-other"),
        (EnvironmentRequest(name="x"), 2, "options-exclude-each-other"),
        (EnvironmentRequest(lock="x"), 1, "options-exclude-each-other"),
        (EnvironmentRequest(lock="x", packages=("a",)), 0, "options-exclude-each-other"),
        (EnvironmentRequest(bundle="x", is_offline=True), 1, "options-exclude-each-other"),
        (EnvironmentRequest(mirrors=("torch",)), 1, "bad-mirror"),
        (EnvironmentRequest(mirrors=("data=https://x",)), 1, "bad-mirror"),
    ],
)
def test_request_when_it_cannot_be(request_: EnvironmentRequest, num: int, rule: str) -> None:
    with pytest.raises(UsageError) as caught:
        request_.check(num)
    assert caught.value.rule == rule


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        ("error: Failed to copy: No space left on device (os error 28)", "disk-full"),
        ("SSLError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]", "certificate-not-trusted"),
        ("invalid peer certificate: UnknownIssuer", "certificate-not-trusted"),
        ("error sending request for url (https://x)", "index-not-reachable"),
        ("Because there is no version of torch==9.9 ... your requirements are unsatisfiable.",
         "no-such-packages"),
    ],
)  # fmt: skip
def test_reported_names_what_stands_in_the_way(said: str, rule: str) -> None:
    assert failed_install(said, None, "uv", "resolving packages").rule == rule
