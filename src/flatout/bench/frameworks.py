"""Trains the same networks with several frameworks, in turns: `flatout bench run --frameworks`.

Every framework is given the same data, initial weights and order of samples. Of a framework's ways
to train, those that compute the same as a plain loop are timed, and the fastest is measured.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

import flatout
from flatout.bench.framework_environments import (
    FrameworkPython,
    MissingFramework,
    find_framework,
    parse_frameworks,
)
from flatout.bench.framework_programs import FrameworkWay
from flatout.bench.framework_rows import FrameworkWorkload
from flatout.bench.framework_turns import FrameworksRequest, Turns
from flatout.bench.framework_verdicts import warnings_of_results
from flatout.bench.limits import Doing, other_cpus_now, uuid_of, warnings_of
from flatout.bench.run import BenchRequest, device_names, devices_here
from flatout.compat.torch_needed import require_torch
from flatout.errors import RunFailed, UsageError
from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.machine import Machine
from flatout.system import atomic_files
from flatout.system.device_state import DeviceWatch, device_state
from flatout.system.host_system import LocalSystem
from flatout.system.load import LoadWatch
from flatout.system.probes.machine import probe
from flatout.system.store.interpreters import resolve_with_flatout

_WORKLOADS = ("mlp", "mnist-large")


def workload_of(name: str, device: str, *, is_quick: bool) -> FrameworkWorkload:
    """A workload in the size for a device.

    Raises:
        UsageError: workload-not-in-frameworks.
    """
    if name == "mlp":
        num_steps = 78 if is_quick else 780
        return FrameworkWorkload(
            name=name, experiment="mlp", parameters={}, size="width 128", num_steps=num_steps,
            steps_per_call=78,
        )  # fmt: skip
    if name == "mnist-large":
        size = "tiny" if device == "cpu" else "full"
        num_steps = 8 if is_quick else 30
        return FrameworkWorkload(
            name=name, experiment="mnist_large", parameters={"size": size},
            size=f"{size}, {16 if size == 'tiny' else 128} channels", num_steps=num_steps,
        )  # fmt: skip
    raise UsageError(
        "workload-not-in-frameworks",
        f"`{name}` is not written for other frameworks.",
        fix="use mlp or mnist-large, or leave out --frameworks",
    )


def run_frameworks(command: BenchRequest, text: str) -> Iterator[Doing | BenchFile]:
    """`flatout bench run --frameworks`; the last value is the file, which is also written.

    Args:
        command: the command line; no workloads are both.
        text: of `--frameworks`.

    Raises:
        UsageError: also unknown-framework, one-device-with-frameworks, bad-device,
            device-not-here, torch-not-installed, and for the interpreter.
    """
    frameworks = parse_frameworks(text)
    names = device_names(command.devices)
    if len(names) > 1:
        raise UsageError(
            "one-device-with-frameworks",
            f"`--devices {command.devices}` cannot be combined with `--frameworks`.",
            because="frameworks are compared on one device",
            fix=f"use --devices {names[0]}",
        )
    for name in command.workloads:
        workload_of(name, "cpu", is_quick=command.is_quick)
    python, version = resolve_with_flatout(command.python, command.env)
    machine = probe(LocalSystem(), python)
    require_torch(machine, version)
    devices, _ = devices_here(machine, names)
    request = FrameworksRequest(
        workloads=tuple(dict.fromkeys(command.workloads)) or _WORKLOADS,
        frameworks=frameworks,
        device=devices[0],
        is_quick=command.is_quick,
    )
    for value in compare_frameworks(python, machine, request):
        if isinstance(value, BenchFile) and command.out is not None:
            atomic_files.write_json(Path(command.out).expanduser(), value)
        yield value


def compare_frameworks(
    python: str, machine: Machine, request: FrameworksRequest
) -> Iterator[Doing | BenchFile]:
    """Measures; the last value is the file.

    Args:
        python: an interpreter with torch and this flatout.
        machine: its facts.

    Raises:
        UsageError: workload-not-in-frameworks, no-framework-here, dataset-not-downloaded.
        RunFailed: bench-worker-died, no-framework-ran.
    """
    workloads = [
        workload_of(name, request.device, is_quick=request.is_quick) for name in request.workloads
    ]
    pythons, missing = _found(python, request)
    ways = list(ways_of(pythons, python, is_quick=request.is_quick))
    uuid = uuid_of(machine, request.device)
    began = device_state(uuid, other_cpus_now())
    watch = LoadWatch()
    rows: list[BenchRow] = []
    versions: dict[str, str] = {"python": machine.host.python or "unknown"}
    with DeviceWatch(uuid) as states:
        for number, workload in enumerate(workloads):
            turns = Turns(python, machine, request, workload)
            for value in turns.measure(ways):
                if isinstance(value, Doing):
                    done = (number + value.done) / len(workloads)
                    yield msgspec.structs.replace(value, done=done)
                else:
                    rows.append(value)
            versions |= turns.versions
            for one in missing:
                rows += turns.rows_of(one.framework).unread(f"{one.reason}: {one.fix}")
        load = watch.load()
        ended = states.state(load.other_cpus if load else None)
    if not any(row.samples for row in rows):
        reason = next((row.unread for row in rows if row.unread), None)
        raise RunFailed(
            "no-framework-ran", "none of the frameworks could train.",
            because=reason, fix="see what each of them printed: flatout doctor --deep",
        )  # fmt: skip
    warnings = (
        *warnings_of(began, ended, machine, request.device),
        *(f"{one.framework}: {one.reason}; {one.fix}" for one in missing),
        *warnings_of_results(rows),
    )
    yield BenchFile(
        kind="run",
        flatout=flatout.__version__,
        # Whose home it is in is nobody's business.
        machine=msgspec.structs.replace(machine, python=None),
        versions=versions,
        settings=request.settings,
        began=began,
        ended=ended,
        rows=tuple(rows),
        warnings=warnings,
    )


def _found(
    python: str, request: FrameworksRequest
) -> tuple[list[FrameworkPython], list[MissingFramework]]:
    found = [
        find_framework(name, named, python, request.device)
        for name, named in request.frameworks.items()
    ]
    missing = [one for one in found if isinstance(one, MissingFramework)]
    here = [one for one in found if isinstance(one, FrameworkPython)]
    if not here:
        raise UsageError(
            "no-framework-here",
            f"no environment has {' or '.join(request.frameworks)}.",
            fix=missing[0].fix,
        )
    return here, missing


def ways_of(
    pythons: Sequence[FrameworkPython], own: str, *, is_quick: bool = False
) -> Iterator[FrameworkWay]:
    """What is compared: torch in three ways, the others in the best of theirs.

    own: the interpreter with torch and flatout. is_quick: no recipe is searched for.
    """
    for one in pythons:
        if one.framework == "torch":
            variants: tuple[str, ...] = ("plain",)
            yield FrameworkWay(name="plain", program="torch", python=one.python, variants=variants)
            variants = ("eager", "compile")
            yield FrameworkWay(name="torch", program="torch", python=one.python, variants=variants)
            variants = ("defaults", "compiled", *(() if is_quick else ("search",)))
            yield FrameworkWay(name="flatout", program="flatout", python=own, variants=variants)
            continue
        if one.framework == "keras":
            # Its backends. Torch is last: XLA compiles for the other two.
            variants = tuple(name for name in ("jax", "tensorflow", "torch") if name in one.others)
        else:
            variants = {
                "tensorflow": ("xla", "graph"), "jax": ("scan", "step"),
                "paddle": ("to_static", "dynamic"),
            }[one.framework]  # fmt: skip
        yield FrameworkWay(
            name=one.framework, program=one.framework, python=one.python, variants=variants
        )  # fmt: skip
