"""cuDNN beside a CUDA toolkit, and NVIDIA's local installers in place of its repositories."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from pathlib import Path
from types import ModuleType

import pytest

from flatout.compat.tables import shipped_tables
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.plan import Plan, RunProgram, Write
from flatout.setup.host import api as host_api
from flatout.setup.host.local_installer import local_installer
from flatout.setup.host.toolkit import plan_toolkit
from flatout.setup.host.windows_script import commands
from flatout.setup.model.host_plan import HostPlanRequest
from flatout.setup.packages.debian_file import package_in


def _cases() -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "setup_plans", Path(__file__).with_name("setup_plans.py")
    )
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


CASES = _cases()
PASCAL = (CASES.card("GeForce GTX 1080 Ti", "6.1"),)
ADA = (CASES.card("GeForce RTX 4090", "8.9"),)
UBUNTU_22 = {"host__distribution": "Ubuntu 22.04.5 LTS"}


def machine(base: str, **changes: object) -> Machine:
    found: Machine = CASES._with(base, **changes)
    return found


LINUX = machine(CASES.LINUX, **CASES.UBUNTU, gpus=ADA)
WSL = machine(CASES.WSL, **CASES.UBUNTU, gpus=ADA)


def planned(here: Machine, cuda: str | None = "12.6", *, package: str | None = None) -> Plan:
    """The toolkit with cuDNN, or what is in a local installer."""
    installer = local_installer(f"/media/{package}.deb", package) if package else None
    return plan_toolkit(here, cuda, "~/.bashrc", shipped_tables(), has_cudnn=installer is None,
                        installer=installer)  # fmt: skip


def lines(plan: Plan) -> list[str]:
    return [line for step in plan.steps for line in commands(step)]


def refusal(here: Machine, cuda: str | None = None, **more: object) -> UsageError:
    with pytest.raises(UsageError) as refused:
        plan_toolkit(here, cuda, "~/.bashrc", shipped_tables(), **more)  # type: ignore[arg-type]
    assert refused.value.rule == "no-plan-here" and refused.value.fix
    return refused.value


@pytest.mark.parametrize(
    ("cuda", "package"),
    [("11.8", "cudnn9-cuda-11"), ("12.6", "cudnn9-cuda-12"), ("13.0", "cudnn9-cuda-13")],
)
def test_cudnn_is_that_of_the_toolkits_cuda(cuda: str, package: str) -> None:
    plan = planned(machine(CASES.LINUX, **UBUNTU_22, gpus=ADA), cuda)
    assert f"sudo apt-get install --yes {package}" in lines(plan)
    # The repository of the toolkit has it; it is added once.
    assert sum("apt-get update" in line for line in lines(plan)) == 1
    assert "not verified" not in " ".join(step.changes for step in plan.steps)


def test_cudnn_for_cards_before_turing_is_the_last_that_knows_them() -> None:
    plan = planned(machine(CASES.LINUX, **CASES.UBUNTU, gpus=PASCAL))
    assert any("libcudnn9-dev-cuda-12=9.10.2.21-1" in line for line in lines(plan))
    # What was installed is looked up without its version.
    step = next(one for one in plan.steps if "libcudnn9" in one.text)
    assert step.done_if is not None and step.done_if.argv[-1] == "libcudnn9-cuda-12"  # type: ignore[union-attr]
    kepler = machine(CASES.LINUX, **UBUNTU_22, gpus=(CASES.card("Tesla K80", "3.7"),))
    assert "Maxwell" in (refusal(kepler, "11.8", has_cudnn=True).because or "")


def test_cudnn_where_no_package_was_seen_says_so() -> None:
    plan = planned(machine(CASES.LINUX, **CASES.DEBIAN, gpus=ADA), "13.0")
    assert any("not verified" in step.changes for step in plan.steps)


def test_cudnn_inside_wsl_comes_from_ubuntus_repository_and_never_with_a_driver() -> None:
    plan = planned(WSL)
    written = {one.action.file: one.action.text for one in plan.steps
               if isinstance(one.action, Write)}  # fmt: skip
    assert "/repos/ubuntu2404/x86_64/ /" in written["/etc/apt/sources.list.d/flatout-cudnn.list"]
    pin = written["/etc/apt/preferences.d/flatout-no-driver"]
    assert "nvidia-driver*" in pin and "Pin-Priority: -1" in pin
    order = [one.text for one in plan.steps]
    # Before apt reads of what is not to be installed.
    assert order.index(next(one for one in order if "driver" in one)) < order.index(
        next(one for one in order if "wsl-ubuntu has no cuDNN" in one)
    )


def test_cudnn_on_windows_is_installed_by_hand() -> None:
    plan = planned(machine(CASES.WINDOWS, gpus=ADA))
    assert plan.steps[-1].safety == "manual" and "cudnn-downloads" in plan.steps[-1].text
    old = planned(machine(CASES.WINDOWS, gpus=PASCAL))
    assert "9.10.2" in old.steps[-1].text and "cudnn-archive" in old.steps[-1].text


CUDA_DEB = "cuda-repo-ubuntu2404-12-6-local"
CUDNN_DEB = "cudnn-local-repo-ubuntu2404-9.5.1"


def test_local_installer_is_added_with_pin_and_key_and_needs_no_network() -> None:
    plan = planned(LINUX, None, package=CUDA_DEB)
    assert plan.goal == "CUDA toolkit 12.6, from the local installer"
    typed = lines(plan)
    assert f"sudo dpkg --install /media/{CUDA_DEB}.deb" in typed
    assert f"sudo sh -c 'cp /var/{CUDA_DEB}/cuda-*-keyring.gpg /usr/share/keyrings/'" in typed
    assert "sudo apt-get install --yes cuda-toolkit-12-6" in typed
    assert not any("http" in line or "curl" in line for line in typed)
    (pin,) = [one.action for one in plan.steps if isinstance(one.action, Write)]
    assert pin.file == "/etc/apt/preferences.d/cuda-repository-pin-600"
    assert "Pin: release l=NVIDIA CUDA\nPin-Priority: 600" in pin.text
    assert all(one.can_be_undone for one in plan.steps)


def test_local_installer_of_debian_has_no_pin() -> None:
    debian = machine(CASES.LINUX, host__distribution="Debian GNU/Linux 12 (bookworm)", gpus=ADA)
    plan = planned(debian, None, package="cuda-repo-debian12-12-9-local")
    assert not any(isinstance(one.action, Write) for one in plan.steps)


def test_local_installer_of_wsl() -> None:
    plan = planned(WSL, None, package="cuda-repo-wsl-ubuntu-12-8-local")
    assert "sudo apt-get install --yes cuda-toolkit-12-8" in lines(plan)


def test_local_installer_of_cudnn_adds_cudnn_alone() -> None:
    plan = planned(LINUX, "12.6", package=CUDNN_DEB)
    assert plan.goal == "cuDNN 9.5.1 for CUDA 12"
    typed = lines(plan)
    assert f"sudo sh -c 'cp /var/{CUDNN_DEB}/cudnn-*-keyring.gpg /usr/share/keyrings/'" in typed
    assert "sudo apt-get install --yes cudnn9-cuda-12" in typed
    assert not any("cuda-toolkit" in line for line in typed)
    # Inside WSL too: there is none for WSL.
    assert planned(WSL, "12.6", package=CUDNN_DEB).steps


@pytest.mark.parametrize(
    ("here", "package", "cuda", "reason"),
    [
        (LINUX, "cuda-repo-ubuntu2204-12-6-local", None, "ubuntu2404 is needed here"),
        (LINUX, "cudnn-local-repo-ubuntu2204-9.5.1", None, "ubuntu2404 is needed here"),
        (WSL, CUDA_DEB, None, "wsl-ubuntu is needed here"),
        (LINUX, CUDA_DEB, "12.8", "contains CUDA 12.6, not 12.8"),
        (machine(CASES.WINDOWS), CUDA_DEB, None, "this is Windows 10"),
        (machine(CASES.LINUX, **CASES.UBUNTU, gpus=PASCAL),
         "cudnn-local-repo-ubuntu2404-9.23.2", "12.6", "need Turing"),
    ],
)  # fmt: skip
def test_local_installer_for_something_else_is_refused(
    here: Machine, package: str, cuda: str | None, reason: str
) -> None:
    error = refusal(here, cuda, installer=local_installer("/media/a.deb", package))
    assert reason in f"{error.problem} {error.because}"


def test_local_installer_of_cuda_has_no_cudnn() -> None:
    installer = local_installer("/media/a.deb", CUDA_DEB)
    error = refusal(LINUX, None, installer=installer, has_cudnn=True)
    assert "cudnn-local-repo" in (error.fix or "")


@pytest.mark.parametrize("package", ["cuda-repo-ubuntu2004-11-6-local", "hello", "cuda-keyring"])
def test_file_that_is_no_installer_of_today_is_refused(package: str) -> None:
    with pytest.raises(UsageError) as refused:
        local_installer("/media/a.deb", package)
    assert refused.value.rule == "no-plan-here" and refused.value.fix


@pytest.mark.skipif(shutil.which("dpkg-deb") is None, reason="needs dpkg-deb")
def test_installer_is_known_by_what_is_in_it_and_not_by_its_name(tmp_path: Path) -> None:
    control = tmp_path / "tree" / "DEBIAN" / "control"
    control.parent.mkdir(parents=True)
    control.write_text(
        f"Package: {CUDNN_DEB}\nVersion: 1.0-1\nArchitecture: amd64\n"
        "Maintainer: nobody <nobody@example.com>\nDescription: made up\n"
    )
    file = tmp_path / "download (1).deb"
    subprocess.run(["dpkg-deb", "--build", str(tmp_path / "tree"), str(file)], check=True,
                   capture_output=True)  # fmt: skip
    assert package_in(str(file)) == (str(file), CUDNN_DEB)
    request = HostPlanRequest(goal="toolkit", cuda="12.6", installer=str(file))
    plan = host_api.plan_host(request, LINUX).plan
    action = next(one.action for one in plan.steps if "add the repository" in one.text)
    # No shell reads it: the space and the brackets stay.
    assert isinstance(action, RunProgram) and action.argv == ("dpkg", "--install", str(file))
    file.write_bytes(b"<html>")
    with pytest.raises(UsageError, match="not a Debian package") as refused:
        package_in(str(file))
    assert refused.value.rule == "source-not-found"


def test_installer_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist") as refused:
        host_api.plan_host(
            HostPlanRequest(goal="toolkit", installer=str(tmp_path / "a.deb")), LINUX
        )
    assert refused.value.rule == "source-not-found"


def test_other_packages_beside_a_toolkit_are_refused() -> None:
    with pytest.raises(UsageError, match="--with nccl") as refused:
        host_api.plan_host(HostPlanRequest(goal="toolkit", packages=("cudnn,nccl",)), LINUX)
    assert "--with cudnn" in (refused.value.fix or "")
    found = host_api.plan_host(HostPlanRequest(goal="toolkit", packages=("cuDNN",)), LINUX)
    assert "cuDNN" in found.plan.goal
