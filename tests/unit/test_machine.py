"""The machine as a noun."""

from __future__ import annotations

import msgspec
import pytest

from flatout.schema.framework import Framework
from flatout.schema.machine import Cpu, Gpu, Host, Machine, Memory

MACHINE = Machine(
    read_at="2026-11-21T03:36:28Z",
    host=Host(os="linux", python="3.12.3", wsl=2),
    cpu=Cpu(num_threads=12, num_cores=6, features=("avx2",)),
    memory=Memory(total_bytes=2**34, available_bytes=2**33),
    gpus=(Gpu(index=0, name="NVIDIA GeForce RTX 3070"),),
    python="/home/ada/.venv/bin/python",
    frameworks=(Framework(name="torch", version="2.13.0+cu130", build="cu130"),),
    unread={"driver": "nvidia-smi: not found"},
)


def test_machine_survives_json_when_facts_are_missing() -> None:
    assert msgspec.json.decode(msgspec.json.encode(MACHINE), type=Machine) == MACHINE


def test_framework_when_it_is_there_or_not() -> None:
    torch = MACHINE.framework("torch")
    assert torch is not None
    assert torch.build == "cu130"
    assert MACHINE.framework("jax") is None


def test_machine_when_somebody_tries_to_change_it() -> None:
    with pytest.raises(AttributeError):
        MACHINE.driver = "581.42"  # type: ignore[misc]
