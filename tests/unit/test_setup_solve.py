"""The solver: what it says beside its choice, and what must hold for every machine."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flatout.compat.fit import BuildRequest, Target, TargetGpu, driver_numbers
from flatout.compat.rows import Os
from flatout.compat.solve import CompatAnswer, solve
from flatout.compat.tables import FRAMEWORKS, shipped_tables
from flatout.compat.target import target_from
from flatout.schema.machine import Gpu as MachineGpu
from flatout.schema.machine import Host, Machine
from flatout.schema.versions import Pair

TABLES = shipped_tables()
CAPABILITIES: list[Pair] = sorted({card.capability for card in TABLES.cards})
DRIVERS = [
    "440.33", "452.39", "470.256.02", "516.94", "525.60.13", "535.104.05", "546.12", "560.35.05",
    "570.124.06", "575.57.08", "580.95.05", "590.48.01", "610.43.02",
]  # fmt: skip
OSES: list[Os] = ["linux", "wsl2", "windows"]


def target(capability: Pair = (6, 1), driver: str | None = "580.95.05", os: Os = "linux") -> Target:
    return Target(os=os, driver=driver, gpus=(TargetGpu(name="the card", capability=capability),))


def ask(where: Target, framework: str = "torch", **wish: object) -> CompatAnswer:
    return solve(where, BuildRequest(framework=framework, **wish), TABLES)  # type: ignore[arg-type]


def text(answer: CompatAnswer) -> str:
    return " ".join((*answer.why, *answer.ruled_out, *answer.nearest))


def test_solve_when_the_last_branch_must_not_be_left() -> None:
    answer = ask(target((6, 1)))
    assert answer.choice and answer.choice.cuda == "cu126"
    assert "do not update the driver past branch 580" in text(answer)
    assert any("cu130" in line and "no kernels" in line for line in answer.ruled_out)


def test_solve_when_the_driver_no_longer_knows_the_card() -> None:
    answer = ask(target((7, 0), "595.58.03"))
    assert answer.choice is None
    assert "no longer supports Volta" in answer.why[0]
    assert len(answer.ruled_out) == 1 and answer.ruled_out[0].startswith("every build of torch: ")
    assert answer.nearest[0].startswith("driver of branch 580")


def test_solve_when_windows_needs_the_index() -> None:
    answer = ask(target((8, 6), "581.42", "windows"))
    assert answer.choice and answer.choice.index == "https://download.pytorch.org/whl/cu130"
    assert "for Windows PyPI has only CPU builds" in text(answer)


@pytest.mark.parametrize("framework", ["tensorflow", "jax"])
def test_solve_when_windows_has_no_gpu(framework: str) -> None:
    answer = ask(target((8, 6), "581.42", "windows"), framework)
    assert answer.choice is None
    assert answer.nearest[0].startswith("WSL 2: ")
    assert any("CPU" in line for line in answer.nearest)


def test_solve_when_tensorflow_has_no_blackwell() -> None:
    answer = ask(target((12, 0)), "tensorflow")
    assert answer.choice is None
    assert any("nvcr.io" in line for line in answer.nearest)


def test_solve_when_an_old_driver_holds_a_card_back() -> None:
    answer = ask(target((8, 6), "470.86"))
    assert answer.choice and answer.choice.cuda == "cu118"
    assert answer.advice == "with driver 580 or newer it could be torch 2.15.0 for cu130"
    assert answer.advice in answer.why


def test_solve_when_gpus_share_no_build() -> None:
    gpus = tuple(
        TargetGpu(name=name, capability=pair)
        for name, pair in (("GTX 1080 Ti", (6, 1)), ("RTX 5090", (12, 0)), ("RTX 3060", (8, 6)))
    )
    answer = ask(Target(os="linux", driver="580.95.05", gpus=gpus))
    assert answer.choice and answer.choice.cuda == "cu130"
    assert answer.usable == (1, 2)
    assert "CUDA_VISIBLE_DEVICES=1,2" in text(answer)


def test_solve_when_cudnn_has_left_a_card_behind() -> None:
    old = "nvidia-cudnn-cu12<9.11"
    assert ask(target((6, 1)), "jax").constraints == (old,)
    assert ask(target((7, 0)), "tensorflow").constraints == (old,)
    assert ask(target((8, 6), "550.54.15"), "jax").constraints == ()
    # torch names its own.
    assert ask(target((6, 1))).constraints == ()


def test_solve_when_the_table_is_unsure() -> None:
    answer = ask(target((12, 0), "581.42", "windows"), "paddle")
    assert "run something on the GPU" in text(answer)
    assert "run something on the GPU" not in text(ask(target((8, 6), "550.54.15")))


def test_solve_when_the_driver_is_not_known() -> None:
    answer = ask(target((8, 6), None))
    assert answer.choice and answer.choice.cuda == "cu130"
    assert "the driver is not known: it needs 580 or newer" in answer.why


def test_solve_when_nothing_like_it_is_published() -> None:
    answer = ask(target(), versions="==1.2.3")
    assert answer.choice is None
    assert answer.why == ("no build of torch ==1.2.3 is known",)
    assert answer.nearest[0].startswith("another version: torch 2.14")


def test_solve_when_wsl_is_not_for_the_card() -> None:
    assert "though it may work" in text(ask(target((5, 2), "581.42", "wsl2")))


def test_document_has_what_was_promised() -> None:
    document = ask(target()).document
    assert list(document) == ["choice", "why", "ruled_out", "nearest"]


def test_driver_numbers_when_only_the_branch_is_reported() -> None:
    assert driver_numbers("525") == (525, 9999)
    assert driver_numbers("[N/A]") is None
    assert ask(target((8, 6), "525")).choice is not None


def test_target_from_when_the_machine_was_read() -> None:
    gpus = (
        MachineGpu(index=0, name="Tesla T4", compute_capability="7.5"),
        # A driver before 510 does not tell it; the name does.
        MachineGpu(index=1, name="NVIDIA GeForce GTX 1080 Ti"),
        MachineGpu(index=2, name="something else"),
    )
    read = Machine(host=Host(os="linux", wsl=2), gpus=gpus, driver="471.96")
    found = target_from(read, TABLES, "AMD64")
    assert (found.os, found.machine, found.driver) == ("wsl2", "x86_64", "471.96")
    assert [(gpu.capability, gpu.kind) for gpu in found.gpus] == [
        ((7, 5), "datacentre"), ((6, 1), "desktop"),
    ]  # fmt: skip


def test_target_from_when_there_is_no_gpu() -> None:
    read = Machine(host=Host(os="windows"), unread={"gpus": "no NVIDIA driver is installed"})
    answer = ask(target_from(read, TABLES))
    assert answer.choice and answer.choice.cuda == "cpu"
    assert answer.why[0] == "no NVIDIA GPU: no NVIDIA driver is installed"
    old = Machine(host=Host(os="linux", wsl=1), gpus=(MachineGpu(index=0, name="Tesla T4"),))
    assert ask(target_from(old, TABLES)).why[0] == "no NVIDIA GPU: WSL 1 cannot use GPUs"


# What must hold for every machine.

machines = st.builds(
    target, st.sampled_from(CAPABILITIES), st.sampled_from(DRIVERS), st.sampled_from(OSES)
)


@settings(max_examples=80, deadline=None)
@given(machines, st.sampled_from(FRAMEWORKS))
def test_a_newer_driver_never_takes_a_choice_away(where: Target, framework: str) -> None:
    gpu = where.gpus[0]
    generation = TABLES.architecture(gpu.capability)
    has_choice = ask(where, framework).choice is not None
    newer = [
        one for one in DRIVERS if (driver_numbers(one) or ()) > (driver_numbers(where.driver) or ())
    ]
    for driver in newer:
        is_gone = generation and generation.gone_from and int(driver[:3]) >= generation.gone_from
        if has_choice and not is_gone:
            assert ask(target(gpu.capability, driver, where.os), framework).choice is not None
        if is_gone:
            assert ask(target(gpu.capability, driver, where.os), framework).choice is None


@settings(max_examples=80, deadline=None)
@given(machines, st.sampled_from(FRAMEWORKS))
def test_a_choice_can_be_asked_for_again(where: Target, framework: str) -> None:
    choice = ask(where, framework).choice
    if choice:
        major, minor = choice.python.split(".")
        pinned = ask(
            where, framework, versions=f"=={choice.version}", cuda=choice.cuda,
            python=(int(major), int(minor)),
        )  # fmt: skip
        assert pinned.choice == choice


@settings(max_examples=60, deadline=None)
@given(machines, machines, st.sampled_from(FRAMEWORKS))
def test_two_gpus_have_a_choice_where_one_of_them_has(
    one: Target, other: Target, framework: str
) -> None:
    both = Target(os=one.os, driver=one.driver, gpus=(*one.gpus, *other.gpus))
    alone = [Target(os=one.os, driver=one.driver, gpus=(gpu,)) for gpu in both.gpus]
    has_any = any(ask(each, framework).choice for each in alone)
    answer = ask(both, framework)
    assert (answer.choice is not None) == has_any
    assert bool(answer.usable) == has_any


@settings(max_examples=60, deadline=None)
@given(machines, st.sampled_from(FRAMEWORKS))
def test_what_the_index_lacks_is_never_chosen_again(where: Target, framework: str) -> None:
    first = ask(where, framework)
    if first.build:
        second = ask(where, framework, absent=(first.build,))
        assert second.build != first.build
        assert any("not in its package index" in line for line in second.ruled_out)


def test_solve_says_that_a_python_was_requested_only_when_it_was() -> None:
    where = target((8, 6))
    assert "was requested" in text(ask(where, python=(3, 12)))
    found = text(ask(where, python=(3, 12), is_python_found=True))
    assert "Python 3.12 is installed; this version" in found and "was requested" not in found
    assert "was requested" not in text(ask(where))
