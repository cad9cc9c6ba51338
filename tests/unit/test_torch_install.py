"""The command that a rule gives for installing torch."""

from __future__ import annotations

from flatout.doctor.torch_install import torch_install
from flatout.schema.machine import Gpu, Host, Machine


def machine(capability: str, driver: str, os: str = "linux") -> Machine:
    return Machine(
        host=Host(os=os), driver=driver, gpus=(Gpu(index=0, compute_capability=capability),)
    )


def test_a_known_card_gets_the_build_that_it_can_run() -> None:
    pascal = torch_install(machine("6.1", "580.95.05"))
    assert len(pascal.commands) == 1 and pascal.commands[0].endswith("/cu126")
    blackwell = torch_install(machine("12.0", "581.42", "windows"), "torchvision")
    assert blackwell.commands[0].endswith("/cu130")
    assert " torchvision " in blackwell.commands[0]


def test_an_unknown_card_gets_both_with_what_decides() -> None:
    fix = torch_install(Machine(), "torchaudio")
    assert [command.rpartition("/")[2] for command in fix.commands] == ["cu130", "cu128", "cu126"]
    assert "compute capability 7.5" in fix.text and fix.safety == "ask"
