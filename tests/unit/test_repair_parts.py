"""What is wrong in an environment, by its metadata and the tables: nothing is installed."""

from __future__ import annotations

import pytest

from flatout.compat.conflicts import (
    closure,
    conflicts,
    constraint_lines,
    is_same_version,
    requirement_names,
)
from flatout.compat.fit import BuildRequest, Target, TargetGpu
from flatout.compat.installed_fit import why_wrong
from flatout.compat.tables import shipped_tables
from flatout.schema.framework import Framework
from flatout.schema.installed_packages import Installed

TABLES = shipped_tables()
PASCAL = TargetGpu(name="GTX 1080 Ti", capability=(6, 1))
AMPERE = TargetGpu(name="RTX 3070", capability=(8, 6))
MARKERS = {"python_version": "3.12", "python_full_version": "3.12.3"}


def held(build: str | None, name: str = "torch", version: str = "2.13.0") -> Framework:
    return Framework(name=name, version=f"{version}+{build}" if build else version, build=build)


@pytest.mark.parametrize(
    ("framework", "gpus", "driver", "said"),
    [
        (held("cu130"), (PASCAL,), "580.95.05", "no kernels for compute capability 6.1"),
        (held("cu126"), (PASCAL,), "580.95.05", None),
        (held("cu130"), (AMPERE,), "550.54.14", "needs driver 580"),
        (held("cu130"), (AMPERE,), "580.95.05", None),
        (held("cpu"), (AMPERE,), "580.95.05", "built for the CPU, but RTX 3070 is present"),
        (held("cpu"), (), None, None),
        # It computes on the CPU there.
        (held("cu130"), (), None, None),
        # One of two cards can use it.
        (held("cu130"), (PASCAL, AMPERE), "580.95.05", None),
        # Nobody knows.
        (held(None), (PASCAL,), "580.95.05", None),
        (held("rocm6.4"), (AMPERE,), "580.95.05", None),
        (held("cu130", version="9.9.9"), (PASCAL,), "580.95.05", None),
    ],
)
def test_why_wrong(
    framework: Framework, gpus: tuple[TargetGpu, ...], driver: str | None, said: str | None
) -> None:
    target = Target(os="linux", driver=driver, gpus=gpus)
    why = why_wrong(framework, target, BuildRequest(framework="torch", python=(3, 12)), TABLES)
    assert why is None if said is None else why is not None and said in why


def test_why_wrong_when_a_person_has_settled_it() -> None:
    target = Target(os="linux", driver="580.95.05", gpus=(AMPERE,))
    cpu = why_wrong(held("cu130"), target, BuildRequest(framework="torch", is_cpu=True), TABLES)
    assert cpu is not None and "the CPU was requested" in cpu
    other = why_wrong(held("cu130"), target, BuildRequest(framework="torch", cuda="cu126"), TABLES)
    assert other is not None and "cu126 was requested" in other
    assert (
        why_wrong(held("cpu"), target, BuildRequest(framework="torch", is_cpu=True), TABLES) is None
    )


def packages(**requires: tuple[str, ...]) -> dict[str, Installed]:
    return {
        name: Installed(name=name, version="1.0", requires=lines)
        for name, lines in requires.items()
    }


def test_conflicts_as_pip_check_finds_them() -> None:
    found = conflicts(
        packages(
            a=(
                "b>=2",
                "c>=1; python_version < '3'",
                "d; extra == 'more'",
                "B (<3)",
                "what is ==this",
            ),
            b=("gone", "a==1.0.*"),
        ),
        MARKERS,
    )
    assert [(one.package, one.required, one.has) for one in found] == [
        ("a", "b", "1.0"), ("b", "gone", None)
    ]  # fmt: skip
    local = {"torch": Installed(name="torch", version="2.13.0+cpu"),
             "v": Installed(name="v", version="1", requires=("torch==2.13.0",))}  # fmt: skip
    assert conflicts(local, MARKERS) == ()


def test_constraint_lines_keep_what_stays() -> None:
    there = list(packages(a=("b[x]>=2", "c")).values())
    there.append(Installed(name="mine", version="0.1", requires=("b<3",), is_local=True))
    assert constraint_lines(there, MARKERS, is_pinned=True) == ["a==1.0", "b<3", "b>=2"]
    assert constraint_lines(there, MARKERS, is_pinned=False) == ["b<3", "b>=2"]


def test_closure_of_packages_that_need_each_other() -> None:
    there = packages(a=("b",), b=("c", "a"), c=(), d=())
    assert closure(["a", "nowhere"], there, MARKERS) == {"a", "b", "c"}


def test_versions_with_what_stands_behind_the_plus() -> None:
    assert is_same_version("1.0", "1.0.0")
    assert not is_same_version("2.13.0", "2.13.0+cpu")
    assert is_same_version("of a kind", "of a kind")
    assert requirement_names(["numpy<2", "Some_Thing[x]>=1", "-r file"]) == {
        "numpy": "numpy<2", "some-thing": "Some_Thing[x]>=1"
    }  # fmt: skip
