"""What others may see of a machine: only what the allow-list knows."""

from __future__ import annotations

from typing import Any, Union, get_args, get_origin

import msgspec
import pytest

from flatout.doctor.api import recording_text
from flatout.doctor.redaction import HIDDEN, redacted
from flatout.schema.driver import CudaLibrary, InstalledToolkit
from flatout.schema.environment_facts import ContainerEngine, Environment
from flatout.schema.framework import Framework
from flatout.schema.machine import Gpu, Host, Machine
from flatout.schema.wsl import Windows, Wsl

SECRETS = (
    "adalove", "lovelace-laptop", "/home/ada/secret-project", r"C:\Users\Ada Lovelace\x", "http://10.0.0.7:8080",
    "registry.example.com/ada/image", "GPU-5b1f0000-1111-2222-3333-444455556666", "José", "李雷",
)  # fmt: skip


def filled(kind: Any, text: str) -> Any:
    """A value of this type in which every text is `text`."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Union or type(None) in arguments:
        return filled(next(one for one in arguments if one is not type(None)), text)
    if kind is str:
        return text
    if origin is tuple:
        return (filled(arguments[0], text),)
    if origin is dict:
        return {text: text, "wsl2.memory": text, "gpus": text}
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        fields = msgspec.structs.fields(kind)
        return kind(**{one.name: filled(one.type, text) for one in fields})
    return kind(1)


@pytest.mark.parametrize("secret", SECRETS)
def test_nothing_secret_passes_wherever_it_stands(secret: str) -> None:
    machine = filled(Machine, secret)
    plain = msgspec.json.encode(machine).decode()
    escaped = msgspec.json.encode(secret).decode().strip('"')
    assert escaped in plain
    assert escaped not in recording_text(machine)
    # Nor as a part of something that is shown.
    assert escaped not in recording_text(filled(Machine, f"2.1+{secret}"))
    assert escaped not in recording_text(filled(Machine, f"NVML: {secret} Unknown Error"))


def test_what_tells_nothing_of_anybody_is_shown() -> None:
    machine = Machine(
        host=Host(os="linux", release="6.6.87.2-microsoft-standard-WSL2",
                  distribution="Ubuntu 24.04.3 LTS", python="3.12.3", wsl=2),
        gpus=(Gpu(index=0, name="NVIDIA GeForce RTX 3070", memory_bytes=8, driver_model="WDDM"),),
        driver="581.42",
        cuda="13.0",
        frameworks=(Framework(name="torch", version="2.9.1+cu130", build="cu130"),),
        windows=Windows(build="10.0.26100.4349", wslconfig={"wsl2.memory": "12GB"}),
        wsl=Wsl(package="2.7.10", distro="Ubuntu-24.04", libraries=("libcuda.so.1",)),
        libraries=(CudaLibrary(name="libcuda", path="/usr/lib/wsl/lib/libcuda.so.1"),),
        toolkits=(InstalledToolkit(path="/usr/local/cuda-12.8", version="12.8.1"),),
        engines=(ContainerEngine(name="docker", version="28.3.2", runtimes=("nvidia", "runc")),),
    )  # fmt: skip
    assert redacted(machine) == machine


def test_what_is_somebodys_own_is_hidden_in_part() -> None:
    machine = Machine(
        host=Host(release="6.12.1-ada-custom"),
        gpus=(Gpu(index=0, uuid="GPU-1"),),
        frameworks=(Framework(name="torch", version="2.9.1+acme7", build="cu130"),),
        windows=Windows(wslconfig={"wsl2.kernel": r"C:\Users\ada\k", "acme.token": "1"}),
        libraries=(CudaLibrary(name="libcudnn", path="/home/ada/lib/libcudnn.so.9"),),
        environments=(Environment(python="/home/ada/.venv/bin/python",
                                  problem="torch: x /home/ada: CUDA out of memory"),),
        engines=(ContainerEngine(name="docker", runtimes=("acme", "runc")),),
        unread={"driver": "NVML: Driver/library version mismatch at /home/ada"},
    )  # fmt: skip
    shown = redacted(machine)
    assert shown.host.release == "6.12.1-x-x"
    assert shown.gpus[0].uuid == HIDDEN
    assert shown.frameworks[0].version == "2.9.1"
    assert shown.windows == Windows(wslconfig={"wsl2.kernel": HIDDEN})
    assert shown.libraries is not None
    assert shown.libraries[0].path == f"{HIDDEN}/libcudnn.so.9"
    assert shown.environments is not None
    assert shown.environments[0].problem == "torch: CUDA out of memory"
    assert shown.engines is not None
    assert shown.engines[0].runtimes == ("runc",)
    assert shown.unread == {"driver": "NVML: Driver/library version mismatch"}
