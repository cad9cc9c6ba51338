"""The shipped tables, cards by their names, and versions."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import replace
from datetime import date
from pathlib import Path

import msgspec
import pytest

from flatout.compat import tables
from flatout.compat.cards import find_card, near_cards
from flatout.compat.fit import BuildRequest, python_for
from flatout.compat.rows import Tables
from flatout.compat.tables import FRAMEWORKS, shipped_tables, with_updates
from flatout.schema.versions import cuda_label, driver_text, meets, numbers, pair

SRC = Path(__file__).resolve().parents[2] / "src"
TABLES = shipped_tables()


def test_tables_are_of_their_kinds() -> None:
    # The loader builds rows without looking; here every value is looked at.
    assert msgspec.convert(msgspec.to_builtins(TABLES), Tables) == TABLES


def test_rows_have_sources_and_dates() -> None:
    for build in TABLES.builds:
        assert len(build.source) > 5 and date.fromisoformat(build.read)
        assert build.python[0] <= build.python[1]
        assert (build.cuda == "cpu") == (not build.codes and build.lowest is None)
        is_address = build.index.startswith("https://") and "{" not in build.index
        assert is_address or build.is_in_default_index
    assert all(row.source for row in (*TABLES.majors, *TABLES.toolkits, *TABLES.architectures))
    assert {build.framework for build in TABLES.builds} == set(FRAMEWORKS)


def test_every_toolkit_of_a_build_has_its_driver() -> None:
    known = {row.cuda for row in TABLES.toolkits}
    assert {build.toolkit for build in TABLES.builds if build.toolkit and build.ptx} <= known
    assert {build.cuda_major for build in TABLES.builds} - {None} == {11, 12, 13}


def test_rows_are_reported_apart() -> None:
    keys = [(one.framework, one.version, one.cuda, one.machine, one.oses, one.index)
            for one in TABLES.builds]  # fmt: skip
    assert len(keys) == len(set(keys))


def test_tables_load_quickly() -> None:
    def spent() -> float:
        start = time.thread_time()
        tables.shipped_tables.__wrapped__()
        return time.thread_time() - start

    # The target is 20 ms of a free core; the median on a busy one is allowed more.
    assert sorted(spent() for _ in range(5))[2] < 0.06


def test_solver_needs_only_the_standard_library() -> None:
    # -S: nothing installed can be found.
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); "
        "from flatout.compat.torch_builds import *; "
        "here = TorchPlatform(os='linux', machine='x86_64', python=(3, 12)); "
        "print(choose_build(here, '580.1', ['6.1']))"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, str(SRC)],
        check=True, timeout=120, capture_output=True, text=True,
    )  # fmt: skip
    assert "torch==2.14.1+cu126" in done.stdout


def test_with_updates_when_an_index_has_more() -> None:
    known = TABLES.builds[0]
    added = replace(known, version="99.0.0")
    updated = with_updates(TABLES, (added, known), "2030-01-01")
    assert updated.read == "2030-01-01"
    assert len(updated.builds) == len(TABLES.builds) + 1


@pytest.mark.parametrize(
    ("typed", "capability"),
    [
        ("NVIDIA GeForce GTX 1080 Ti", (6, 1)),
        ("gtx1080ti", (6, 1)),
        ("GeForce  GTX-1080-TI", (6, 1)),
        ("1080 Ti", (6, 1)),
        ("NVIDIA GeForce RTX 3070 Laptop GPU", (8, 6)),
        ("GeForce RTX 2080 Super with Max-Q Design", (7, 5)),
        ("GeForce GTX 1060 6GB", (6, 1)),
        ("MX 350", (6, 1)),
        ("RTX A4000", (8, 6)),
        ("A40", (8, 6)),
        ("RTX 4000", (7, 5)),
        ("Quadro RTX 4000", (7, 5)),
        ("RTX 4000 Ada", (8, 9)),
        ("NVIDIA RTX 4000 SFF Ada Generation", (8, 9)),
        ("Quadro M4000", (5, 2)),
        ("Tesla M4", (5, 2)),
        ("NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", (12, 0)),
        ("rtx pro 6000", (12, 0)),
        ("RTX 6000 Ada Generation", (8, 9)),
        ("NVIDIA A100-SXM4-80GB", (8, 0)),
        ("NVIDIA H100 80GB HBM3", (9, 0)),
        ("Tesla V100-SXM2-16GB", (7, 0)),
        ("NVIDIA GH200 480GB", (9, 0)),
        ("GRID T4-8C", (7, 5)),
        ("NVIDIA A100-SXM4-40GB MIG 1g.5gb", (8, 0)),
        ("Jetson Orin Nano Developer Kit", (8, 7)),
        ("DGX H100", (9, 0)),
        ("NVIDIA GeForce GTX 1650 Mobile / Max-Q", (7, 5)),
        ("NVIDIA A10-24Q", (8, 6)),
        ("TITAN X (Pascal)", (6, 1)),
        ("GeForce GTX TITAN X", (5, 2)),
        ("Orin (nvgpu)", (8, 7)),
        ("GeForce RTX 4090 D", (8, 9)),
        ("GeForce RTX 3050 A Laptop GPU", (8, 9)),
    ],
)
def test_find_card_when_it_is_written_another_way(typed: str, capability: tuple[int, int]) -> None:
    card = find_card(typed, TABLES.cards)
    assert card is not None and card.capability == capability


@pytest.mark.parametrize("typed", ["RTX 9999", "Radeon RX 7900 XTX", "", "NVIDIA", "RTX", "40"])
def test_find_card_when_there_is_none(typed: str) -> None:
    assert find_card(typed, TABLES.cards) is None


def test_near_cards_when_a_letter_is_wrong() -> None:
    assert near_cards("GeForce RTX 3O60", TABLES.cards)[0].startswith("GeForce RTX 30")


def test_every_card_is_found_by_its_own_name() -> None:
    for card in TABLES.cards:
        for name in (card.name, f"NVIDIA {card.name}", card.name.upper(), card.name.lower()):
            found = find_card(name, TABLES.cards)
            assert found and found.capability == card.capability, name
            assert TABLES.architecture(card.capability), name


@pytest.mark.parametrize(
    ("version", "wish", "expected"),
    [
        ("2.9.1", "", True), ("2.9.1", "==2.9.*", True), ("2.10.0", "==2.9.*", False),
        ("2.9.0", "==2.9", True), ("2.9.1", ">=2.9,<2.10", True), ("2.10.0", "<2.9", False),
        ("2.10.1", "~=2.10.0", True), ("2.11.0", "~=2.10.0", False), ("2.11.0", "~=2.10", True),
        ("0.12.0.1", ">0.12.0", True), ("2.9.1", "!=2.9.1", False), ("2.9.1", "nonsense", False),
    ],
)  # fmt: skip
def test_meets(version: str, wish: str, expected: bool) -> None:
    assert meets(version, wish) is expected


def test_versions_when_they_are_written_another_way() -> None:
    assert driver_text("32.0.15.8142") == "581.42"
    assert driver_text("R580") == "580"
    assert cuda_label("12.6") == cuda_label("cu126") == cuda_label("CUDA 12.6.3") == "cu126"
    assert cuda_label("13") == "cu13"
    assert numbers("580.95.05") == (580, 95, 5) and numbers("[N/A]") == ()
    for wrong in ("3", "three", "3.12.1.4", ""):
        with pytest.raises(ValueError):
            pair(wrong)
    for wrong in ("latest", "58.1", "580.95.05.1"):
        with pytest.raises(ValueError):
            driver_text(wrong)


def test_python_for_when_the_usual_one_does_not_fit() -> None:
    builds = {(one.framework, one.version): one for one in TABLES.builds if one.cuda == "cpu"}
    wish = BuildRequest(framework="torch")
    assert python_for(builds["torch", "2.15.0"], wish) == (3, 12)
    assert python_for(builds["torch", "2.1.2"], wish) == (3, 11)


def test_every_paddle_has_the_setuptools_that_it_imports() -> None:
    # Its metadata ask for it from Python 3.12 on; without it `import paddle` fails before.
    builds = [one for one in shipped_tables().builds if one.framework == "paddle"]
    assert builds and all("setuptools" in one.constraints for one in builds)
