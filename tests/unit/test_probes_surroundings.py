"""What lies around driver and framework: from files and from what programs print."""

from __future__ import annotations

import json
import threading
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.busy_machine import least_s

from flatout.schema.driver import KernelModule
from flatout.schema.environment_facts import ContainerEngine, ProcessLimits
from flatout.system.host_system import (
    Calls,
    Completed,
    LocalSystem,
    RecordedSystem,
    Space,
    SystemRecording,
    Unread,
)
from flatout.system.probes import (
    disks,
    engines,
    libraries,
    module,
    network,
    process,
    toolkits,
    working,
)
from flatout.system.probes.environments import probe_environments
from flatout.system.probes.examination import examine
from flatout.system.timeout_threads import run_together

CALLS = Calls(python_version="3.12.3", num_threads=4, folder="/mnt/c/Users/ada/p")


def recorded(
    files: dict[str, str | None], commands: dict[tuple[str, ...], Completed] | None = None,
    environment: dict[str, str] | None = None, spaces: dict[str, Space] | None = None,
) -> RecordedSystem:  # fmt: skip
    return RecordedSystem(
        SystemRecording(
            platform="linux", calls=CALLS, files=files, commands=tuple((commands or {}).items()),
            environment=environment or {}, spaces=spaces or {},
        )
    )  # fmt: skip


def test_run_together_when_one_fails_and_one_hangs() -> None:
    def fail() -> int:
        raise ValueError("no")

    release = threading.Event()
    began = time.perf_counter()
    reported = run_together({"a": lambda: 1, "b": fail, "c": lambda: release.wait(60)}, 1.0)
    # Not as long as the one that hangs.
    assert time.perf_counter() - began < 30
    release.set()
    assert reported["a"] == 1
    assert reported["b"] == Unread("a bug in flatout: ValueError: no")
    assert reported["c"] == Unread("no answer within 1 s")


OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  570.86.15  Release Build  (d@x)\n"
    "GCC version:  gcc version 13.3.0\n"
)
CLOSED = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.14  Thu Feb 22 01:44:30 UTC 2024\n"


@pytest.mark.parametrize(
    ("text", "reported"),
    [(OPEN, ("570.86.15", "open")), (CLOSED, ("550.54.14", "proprietary")), ("", (None, None))],
)
def test_parse_version_file(text: str, reported: tuple[str | None, str | None]) -> None:
    assert module.parse_version_file(text) == reported


def test_probe_module_when_nouveau_holds_the_gpu() -> None:
    secure_boot = "/sys/firmware/efi/efivars/SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c"
    dmesg = "[1] NVRM: Xid (PCI:0000:01:00): 79, pid=1\n[2] NVRM: Xid (PCI:0000:01:00): 79\n"
    system = recorded(
        {
            "/sys/bus/pci/devices/0000:01:00.0/uevent": "DRIVER=nouveau\nPCI_CLASS=30000\n"
            "PCI_ID=10DE:2484\n",
            "/sys/bus/pci/devices/0000:00:02.0/uevent": "DRIVER=i915\nPCI_CLASS=30000\n"
            "PCI_ID=8086:1\n",
            "/proc/modules": "nouveau 2 0 - Live 0x0\n",
            secure_boot: "\x06\0\0\0\x01",
            "/usr/sbin/modinfo": "",
            "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.570.86.15": "",
            "/var/lib/dpkg/status": "Package: nvidia-driver-570\nStatus: install ok installed\n",
        },
        {
            ("dmesg",): Completed(exit_code=0, stdout=dmesg),
            ("/usr/sbin/modinfo", "nvidia"): Completed(
                exit_code=0, stdout="license:        Dual MIT/GPL\nversion:        570.86.15\n"
            ),
        },
    )
    found, unread = module.probe_module(system)
    assert found == KernelModule(
        installed="570.86.15", user_space="570.86.15", flavour="open", owner="nouveau",
        packages=("nvidia-driver-570",), is_secure_boot_on=True, is_nouveau_loaded=True,
        pci_devices=("2484",), is_built=True, is_blacklisted=False,
        is_dkms_installed=False, xids=(79,),
    )  # fmt: skip
    assert unread.keys() == {"module.loaded", "module.fabric_manager", "module.is_persistence_on"}


@pytest.mark.parametrize(
    ("text", "state"),
    [("LoadState=not-found\nActiveState=inactive\n", "not-found"),
     ("LoadState=loaded\nActiveState=failed\n", "failed"), ("", None)],
)  # fmt: skip
def test_parse_unit(text: str, state: str | None) -> None:
    assert module.parse_unit(text) == state


def test_probe_libraries_in_the_order_of_the_loader() -> None:
    ldconfig = (
        "3 libs found in cache `/etc/ld.so.cache'\n"
        "\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/wsl/lib/libcuda.so.1\n"
        "\tlibcuda.so.1 (libc6) => /usr/lib/i386-linux-gnu/libcuda.so.1\n"
        "\tlibcublas.so.12 (libc6,x86-64) => /usr/local/cuda/lib64/libcublas.so.12\n"
    )
    files = (
        "/sbin/ldconfig", "/usr/local/cuda/lib64/stubs/libcuda.so",
        "/usr/lib/wsl/lib/libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1",
        "/usr/local/cuda/lib64/libcublas.so.12", "/usr/local/cuda/lib64/libcublas.so.12.8.4.1",
        "/site/nvidia/cudnn/lib/libcudnn.so.9",
    )  # fmt: skip
    system = recorded(
        dict.fromkeys(files, ""),
        {("/sbin/ldconfig", "-p"): Completed(exit_code=0, stdout=ldconfig)},
        {"LD_LIBRARY_PATH": ":/usr/local/cuda/lib64/stubs/"},
    )
    found, unread = libraries.probe_libraries(system, "/site")
    assert unread == {}
    assert [(one.name, one.path, one.version, one.found_by, one.is_stub) for one in found] == [
        ("libcuda", "/usr/local/cuda/lib64/stubs/libcuda.so", None, "LD_LIBRARY_PATH", True),
        ("libcudnn", "/site/nvidia/cudnn/lib/libcudnn.so.9", "9", "wheel", False),
        ("libcuda", "/usr/lib/wsl/lib/libcuda.so.1", "1", "ldconfig", False),
        ("libcublas", "/usr/local/cuda/lib64/libcublas.so.12", "12.8.4.1", "ldconfig", False),
    ]


@pytest.mark.parametrize(
    ("more", "plain"),
    [
        ("", [False]),
        # A link, which ldconfig enters by its own name.
        ("\tlibcuda.so (libc6,x86-64) => /usr/local/lib/libcuda.so\n", [False, True]),
    ],
)
def test_a_library_is_plain_where_the_cache_holds_its_bare_name(
    more: str, plain: list[bool]
) -> None:
    ldconfig = f"\tlibcuda.so.1 (libc6,x86-64) => /usr/lib/wsl/lib/libcuda.so.1\n{more}"
    files = ("/sbin/ldconfig", "/usr/lib/wsl/lib/libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1",
             "/usr/local/lib/libcuda.so")  # fmt: skip
    system = recorded(
        dict.fromkeys(files, ""),
        {("/sbin/ldconfig", "-p"): Completed(exit_code=0, stdout=ldconfig)},
    )
    found, _ = libraries.probe_libraries(system, None)
    assert [one.is_plain for one in found] == plain


def test_probe_toolkits_names_each_once_and_the_first() -> None:
    files = {
        "/usr/local/cuda/bin/nvcc": "", "/usr/local/cuda-12.8/bin/nvcc": "", "/usr/bin/nvcc": "",
        "/usr/local/cuda/version.json": '{"cuda": {"name": "CUDA SDK", "version": "12.8.1"}}',
        "/usr/local/cuda-12.8/version.json": '{"cuda": {"version": "12.8.1"}}',
    }  # fmt: skip
    said = "Cuda compilation tools, release 12.0, V12.0.140\nBuild cuda_12.0.r12.0"
    system = recorded(
        dict(files),
        {("/usr/bin/nvcc",): Completed(exit_code=0, stdout=said)},
        {"PATH": "/home/ada:/usr/bin:/usr/local/cuda/bin"},
    )
    found, _ = toolkits.probe_toolkits(system)
    assert [(one.path, one.version, one.is_first) for one in found] == [
        ("/usr", "12.0.140", True), ("/usr/local/cuda", "12.8.1", False)
    ]  # fmt: skip


def test_probe_disks_when_the_project_is_on_a_windows_drive() -> None:
    mounts = (
        "60 80 8:48 / / rw,relatime - ext4 /dev/sdd rw\n"
        "80 60 0:52 / /mnt/c rw,noatime - 9p C:\\134 rw,aname=drvfs;path=C:\\;uid=1000;metadata;x\n"
        "broken\n"
    )
    system = recorded(
        {"/proc/self/mountinfo": mounts},
        environment={"HOME": "/home/ada"},
        spaces={"/mnt/c/Users/ada/p": Space(total_bytes=9, free_bytes=1, is_read_only=False),
                "/": Space(total_bytes=7, free_bytes=5, free_inodes=3, is_read_only=False)},
    )  # fmt: skip
    found, unread = disks.probe_disks(system)
    by_role = {one.role: one for one in found}
    project, home = by_role["project"], by_role["home"]
    assert (project.kind, project.is_windows_drive, project.has_metadata) == ("9p", True, True)
    assert (home.kind, home.is_windows_drive, home.free_inodes) == ("ext4", False, 3)
    assert by_role["data"].free_bytes == 5
    assert unread["disks.0.free_inodes"] == "it does not count inodes"


def test_probe_engines_when_docker_runs() -> None:
    info = {
        "ServerVersion": "28.3.2", "OperatingSystem": "Ubuntu 24.04", "DockerRootDir": "/var/lib/d",
        "Runtimes": {"runc": {}, "nvidia": {}}, "SecurityOptions": ["name=apparmor"],
        "DiscoveredDevices": [{"Source": "cdi", "ID": "nvidia.com/gpu=0"}],
        "ClientInfo": {"Plugins": [{"Name": "compose", "Version": "v2.38.1"}]},
    }  # fmt: skip
    system = recorded(
        {"/usr/bin/docker": "", "/etc/nvidia-container-runtime/config.toml":
         "[nvidia-container-cli]\n#no-cgroups = false\nno-cgroups = true\n", "/mnt/c/d/podman": ""},
        {("/usr/bin/docker", "info"): Completed(exit_code=0, stdout=json.dumps(info))},
        {"PATH": "/mnt/c/d:/usr/bin"},
    )  # fmt: skip
    (found,), unread = engines.probe_engines(system)
    assert found == ContainerEngine(
        name="docker", version="28.3.2", is_running=True, is_permitted=True, is_snap=False,
        is_rootless=False, runtimes=("nvidia", "runc"), cdi_devices=("nvidia.com/gpu=0",),
        no_cgroups=True, compose="2.38.1",
    )  # fmt: skip
    assert unread.keys() == {"engines.0.toolkit", "engines.0.cdi_driver"}


DENIED = "permission denied while trying to connect to the Docker daemon socket"


@pytest.mark.parametrize(
    ("done", "is_running", "is_permitted"),
    [
        (Completed(exit_code=1, stderr=DENIED), True, False),
        (Completed(exit_code=1, stderr="Cannot connect to the Docker daemon"), False, None),
        (Completed(reason="no answer within 1.5 s"), None, None),
        (Completed(exit_code=0, stdout="null, or garbage {"), False, None),
    ],
)
def test_parse_docker_when_its_daemon_does_not_answer(
    done: Completed, is_running: bool | None, is_permitted: bool | None
) -> None:
    found, _ = engines.parse_docker(done)
    assert (found.is_running, found.is_permitted) == (is_running, is_permitted)


def test_parse_cdi() -> None:
    text = (
        'cdiVersion: 0.5.0\nkind: nvidia.com/gpu\ndevices:\n  - name: "0"\n    containerEdits: {}\n'
        "  - name: all\nmounts:\n    - hostPath: /usr/lib/libcuda.so.570.86.15\n"
    )
    assert engines.parse_cdi(text) == (("nvidia.com/gpu=0", "nvidia.com/gpu=all"), "570.86.15")
    assert engines.parse_cdi("kind: acme.com/x") == ((), None)


def test_probe_network() -> None:
    tcp = (
        "  sl  local_address rem_address   st tx_queue\n"
        "   0: 00000000:733C 00000000:0000 0A 00000000:00000000\n"
        "   1: 0100007F:1770 00000000:0000 01 00000000:00000000\n"
    )
    system = recorded(
        {"/proc/net/tcp": tcp, "/proc/sys/kernel/hostname": "Ada\n",
         "/etc/hosts": "127.0.0.1 localhost\n127.0.1.1 ada # me\n"},
        environment={"HTTPS_PROXY": "http://u:p@proxy:8", "no_proxy": ""},
    )  # fmt: skip
    found, unread = network.probe_network(system)
    assert found.busy_ports == (29500,)
    assert (found.has_proxy, found.is_own_name_loopback) == (True, True)
    assert unread.keys() == {"network.can_resolve", "network.clock_skew_s"}
    assert network.parse_hosts("10.0.0.2 ada\n", "ada") is False
    trie = "  |-- 172.20.1.3\n    /32 host LOCAL\n  |-- 172.20.0.0\n    /20 link UNICAST\n"
    assert network.parse_fib_trie(trie) == {"172.20.1.3"}


def test_parse_limits() -> None:
    text = "Max processes   96365   96365   processes\nMax open files  1024  4096  files\n"
    assert process.parse_limits(text) == ProcessLimits(open_files=1024, processes=96365)


def test_probe_environments_tells_what_one_is_made_of() -> None:
    made = {"is_virtual": True, "is_uv": True, "has_user_site": False, "site": "/v/s"}
    packages = {"torch": {"version": "2.9.1+cu130"}, "jax-cuda12-plugin": {"version": "0.8.0"},
                "pytorch-triton": {"version": "3.5.0"}, "jax": {"version": "0.8.0"}}  # fmt: skip
    report = {"python": "3.12.3", "packages": packages, "made": made}
    system = RecordedSystem(
        SystemRecording(platform="linux", calls=CALLS, environment={"CONDA_PREFIX": "/c"},
                  files={"/c/bin/python": ""}, packages={"/v/bin/python": report})
    )  # fmt: skip
    first, second = probe_environments(system, "/v/bin/python")
    assert (first.environment.kind, first.environment.version, first.site) == (
        "uv", "3.12.3", "/v/s")  # fmt: skip
    assert [(one.name, one.build) for one in first.environment.frameworks] == [
        ("torch", "cu130"), ("jax", "cu12"), ("triton", None), ("jax-cuda12-plugin", None)
    ]  # fmt: skip
    assert second.environment.python == "/c/bin/python"
    assert second.unread["version"].startswith("/c/bin/python: ")


def test_try_environment_leaves_a_build_without_cuda_alone() -> None:
    environment = probe_environments(
        RecordedSystem(SystemRecording(platform="linux", calls=CALLS, packages={"/p": {
            "packages": {"torch": {"version": "2.9.1+cpu"}, "jax": {"version": "0.8.0"},
                         "jax-cuda12-plugin": {"version": "0.8.0"}}}})), "/p",
    )[0].environment  # fmt: skip
    failed = Completed(exit_code=1, stderr="Traceback\nRuntimeError: no GPU\n")
    tried, said = working.try_environment(recorded({}, {("/p",): failed}), environment)
    assert tried.can_use_gpu is False
    assert tried.problem == "jax: RuntimeError: no GPU"
    assert said.startswith("Traceback")


@pytest.mark.parametrize(
    ("done", "error"),
    [
        (Completed(exit_code=0, stdout='{"path": "/x", "cuda": "13.0", "num_devices": 1}'), None),
        (Completed(exit_code=-11), "crashed (exit code -11)"),
        (Completed(reason="no answer within 20 s"), "no answer within 20 s"),
        (Completed(exit_code=0, stdout="garbage"), "cannot read the answer 'garbage'"),
    ],
)
def test_parse_start(done: Completed, error: str | None) -> None:
    found, unread = working.parse_start(done)
    assert found.error == error
    assert bool(unread) == (error is not None)


def test_examine_gives_a_reason_where_nothing_is_to_be_read() -> None:
    found = examine(RecordedSystem(SystemRecording(platform="linux", calls=CALLS))).machine
    assert found.environments is not None
    assert {"gpus", "driver", "module.loaded", "libraries", "limits"} <= found.unread.keys()


def test_examine_this_machine_is_quick() -> None:
    examine(LocalSystem())
    # What this process itself does, and its threads: how long others take depends on who else
    # computes.
    assert least_s(lambda: examine(LocalSystem()), 1.0, time.process_time) < 1


@given(st.text())
def test_parsers_when_the_text_is_garbage(text: str) -> None:
    module.parse_version_file(text)
    module.parse_modinfo(text)
    module.parse_uevent(text)
    module.parse_unit(text)
    module.parse_xids(text)
    libraries.parse_ldconfig(text)
    toolkits.parse_version_json(text)
    toolkits.parse_nvcc(text)
    disks.parse_mountinfo(text)
    engines.parse_docker(Completed(exit_code=0, stdout=text))
    engines.parse_podman(Completed(exit_code=0, stdout=text))
    engines.parse_cdi(text)
    network.parse_hosts(text, "ada")
    network.parse_listening(text)
    network.parse_fib_trie(text)
    process.parse_limits(text)
    working.parse_start(Completed(exit_code=0, stdout=text))
