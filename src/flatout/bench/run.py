"""`flatout bench run`: trains workloads in fresh processes that take turns."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

import msgspec

import flatout
from flatout.bench.api import known_limit, resolved_device, usable_limits
from flatout.bench.limits import Doing, other_cpus_now, uuid_of, warnings_of
from flatout.bench.run_effort import FULL_RUN, QUICK_RUN, RunEffort
from flatout.bench.run_rows import ProductLimits, Series, rows_of, spill_warnings
from flatout.compat.torch_needed import require_torch
from flatout.errors import UsageError, nearest
from flatout.schema.bench import BenchFile, DeviceState
from flatout.schema.machine import Machine
from flatout.schema.predict_protocol import ProcessFailed
from flatout.schema.run_protocol import (
    AnyRunReply,
    RecipeChosen,
    RecipeRequest,
    WorkloadMeasured,
    WorkloadRequest,
)
from flatout.schema.workloads import WORKLOADS, Workload, measured_size
from flatout.system import atomic_files
from flatout.system.clock import now_s
from flatout.system.device_state import DeviceWatch, device_state
from flatout.system.host_system import LocalSystem
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.load import LoadWatch
from flatout.system.probes.machine import probe
from flatout.system.process_env import plain_environment
from flatout.system.store import bench_runs
from flatout.system.store.interpreters import resolve_with_flatout
from flatout.system.worker_process import ending_text

_WORKER = "flatout.engine.bench.run_worker"
_DEVICE = re.compile(r"cpu|cuda(:[0-9]{1,3})?")
_DTYPES = ("fp64", "fp32", "tf32", "bf16", "fp16", "float8", "int8")


class BenchRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout bench run` as data.

    workloads: names; none means all. devices: with commas. out: a file for the result.
    """

    workloads: tuple[str, ...] = ()
    devices: str = "auto"
    is_quick: bool = False
    out: str | None = None
    python: str | None = None
    env: str | None = None


def run(command: BenchRequest) -> Iterator[Doing | BenchFile]:
    """Measures; after each workload there is a file with all so far, and the last is the result.

    Raises:
        UsageError: unknown-workload, bad-device, device-not-here, torch-not-installed, and for the
            interpreter.
    """
    workloads = chosen_workloads(command.workloads)
    names = device_names(command.devices)
    python, version = resolve_with_flatout(command.python, command.env)
    machine = probe(LocalSystem(), python)
    require_torch(machine, version)
    devices, skipped = devices_here(machine, names)
    measurement = Measurement(python, machine, devices, QUICK_RUN if command.is_quick else FULL_RUN)
    for value in measurement.run(workloads, skipped):
        # After each workload: a run of all takes long, and may be interrupted.
        if isinstance(value, BenchFile):
            bench_runs.keep_run(value)
            if command.out is not None:
                atomic_files.write_json(Path(command.out).expanduser(), value)
        yield value


def chosen_workloads(names: Sequence[str]) -> list[Workload]:
    """The workloads of these names, each once; all if there are none.

    Raises:
        UsageError: unknown-workload.
    """
    for name in names:
        if name not in WORKLOADS:
            raise UsageError(
                "unknown-workload",
                f"there is no workload `{name}`.",
                fix=nearest(name, WORKLOADS),
            )
    return [WORKLOADS[name] for name in dict.fromkeys(names or WORKLOADS)]


def device_names(text: str) -> list[str]:
    """The devices of `--devices`, each once; of each type only one.

    Raises:
        UsageError: bad-device.
    """
    names = list(dict.fromkeys(name.strip() for name in text.split(",")))
    types = {"cpu" if name == "cpu" else "cuda" for name in names}
    if names == ["auto"] or (
        all(_DEVICE.fullmatch(name) for name in names) and len(types) == len(names)
    ):
        return names
    raise UsageError(
        "bad-device",
        f"`--devices {text}` is not a list of devices.",
        because="one CPU and one GPU can be measured, with a comma between them",
        fix="use auto, cpu, cuda, cuda:1 or cpu,cuda",
    )


def devices_here(machine: Machine, names: Sequence[str]) -> tuple[list[str], list[str]]:
    """The devices that can be measured, and what is said of the others.

    Raises:
        UsageError: device-not-here.
    """
    torch = machine.framework("torch")
    found, skipped = [], []
    for name in names:
        device = resolved_device(machine, name)
        reason = None
        if device.startswith("cuda"):
            if torch is None or torch.build == "cpu":
                reason = "torch is a build for CPUs"
            if int(device[5:]) >= len(machine.gpus):
                reason = machine.unread.get("gpus") or "there is no such GPU"
        if reason is None:
            found.append(device)
        else:
            skipped.append(f"{name} was skipped: {reason}")
    if not found:
        raise UsageError(
            "device-not-here",
            f"`--devices {','.join(names)}`: no such device here.",
            because=skipped[0].partition(": ")[2],
            fix="use --devices cpu, or leave it out",
        )
    return found, skipped


class Measurement:
    """Workloads on the devices of a machine.

    Args:
        python: an interpreter with torch and this flatout.
        machine: its facts.
        devices: `cpu` or `cuda:N`.
        effort: how much.
    """

    def __init__(
        self, python: str, machine: Machine, devices: Sequence[str], effort: RunEffort
    ) -> None:
        self._python = python
        self._machine = machine
        self._devices = devices
        self._effort = effort
        self._num_started, self._num_all = 0, 1

    def run(
        self, workloads: Sequence[Workload], warnings: Sequence[str]
    ) -> Iterator[Doing | BenchFile]:
        """Measures one workload after the other, with a file of all so far after each."""
        per_device = 1 + 2 * self._effort.num_processes
        self._num_all = len(workloads) * len(self._devices) * per_device
        uuid = next((uuid_of(self._machine, one) for one in self._devices[::-1]), None)
        began = device_state(uuid, other_cpus_now())
        watch = LoadWatch()
        everything: list[Series] = []
        with DeviceWatch(uuid) as states:
            for workload in workloads:
                for value in self._workload(workload):
                    if isinstance(value, Doing):
                        yield value
                    else:
                        everything.append(value)
                load = watch.load()
                ended = states.state(load.other_cpus if load else None)
                yield self._file(everything, (began, ended), warnings)

    def _workload(self, workload: Workload) -> Iterator[Doing | Series]:
        """Its ways and devices in turns; each turn is in the opposite order of the last."""
        series = []
        for device in self._devices:
            where = f"{workload.name} on {device}"
            budget_s = self._effort.search_s
            search = "recipe" if budget_s is None else f"recipe, up to {budget_s:g} s"
            yield self._doing(f"{where}: {search}")
            series += self._series(workload, device)
        for number in range(self._effort.num_processes):
            for one in series if number % 2 == 0 else series[::-1]:
                where = f"process {number + 1} of {self._effort.num_processes}"
                yield self._doing(f"{workload.name} on {one.device}: {one.way}, {where}")
                if one.problem is None:
                    self._measure(one)
        yield from series

    def _series(self, workload: Workload, device: str) -> list[Series]:
        """The plain loop, and flatout's with its recipe."""
        types = [one.partition(":")[0] for one in self._devices]
        device_type, num_cores = device.partition(":")[0], self._machine.cpu.num_cores
        size = measured_size(workload, device_type, types, num_cores)
        request = RecipeRequest(
            size=size, device=device, fixed=workload.fixed, budget_s=self._effort.search_s
        )
        reply = self._ask(request)
        plain = Series(
            workload=workload, size=size, way="plain", device=device, recipe="the plain loop"
        )
        tuned = Series(workload=workload, size=size, way="flatout", device=device, recipe="unknown")
        if isinstance(reply, RecipeChosen):
            tuned.changes, tuned.recipe = reply.changes, reply.text
            tuned.ladder = reply.ladder
        else:
            tuned.problem = str(reply)
        return [plain, tuned]

    def _measure(self, series: Series) -> None:
        """One more process of a series; its failure is noted there."""
        request = WorkloadRequest(
            size=series.size,
            device=series.device,
            fixed=series.workload.fixed,
            changes=series.changes,
            started_at=now_s(),
            num_blocks=self._effort.num_blocks,
            block_s=self._effort.block_s,
        )
        # flatout's workers have an environment of their own; a plain loop has the user's.
        reply = self._ask(request, is_plain=series.way == "plain")
        if isinstance(reply, WorkloadMeasured):
            series.replies.append(reply)
        else:
            series.problem = str(reply)

    def _ask(
        self, request: RecipeRequest | WorkloadRequest, *, is_plain: bool = False
    ) -> RecipeChosen | WorkloadMeasured | str:
        """The reply of a fresh process, or why there is none."""
        environment = plain_environment() if is_plain else None
        with JsonProcess(self._python, _WORKER, environment=environment) as process:
            try:
                replies = list(process.ask(request, AnyRunReply))
            except ProcessEnded as ended:
                return f"its process {ending_text(ended.exit_code)}"
        reply = replies[-1] if replies else None
        if isinstance(reply, RecipeChosen | WorkloadMeasured):
            return reply
        if isinstance(reply, ProcessFailed):
            because = reply.finding.because
            return f"{reply.finding.problem}{f' ({because})' if because else ''}"
        return "its process said nothing"

    def _doing(self, what: str) -> Doing:
        doing = Doing(what=what, done=min(self._num_started / self._num_all, 1.0))
        self._num_started += 1
        return doing

    def _file(
        self,
        everything: Sequence[Series],
        states: tuple[DeviceState, DeviceState],
        warnings: Sequence[str],
    ) -> BenchFile:
        limits = {device: self._limits(device) for device in self._devices}
        rows = list(chain.from_iterable(rows_of(one, limits[one.device]) for one in everything))
        replies = [reply for one in everything for reply in one.replies]
        names = [reply.name for reply in replies if reply.name] or [self._machine.cpu.name or ""]
        settings = {"device": ",".join(self._devices), "name": names[0], **self._effort.settings}
        num_cores = self._machine.cpu.num_cores
        doubts = chain.from_iterable(
            warnings_of(*states, self._machine, device) for device in self._devices
        )
        python = self._machine.host.python or "unknown"
        return BenchFile(
            kind="run",
            flatout=flatout.__version__,
            # Whose home it is in is nobody's business.
            machine=msgspec.structs.replace(self._machine, python=None),
            versions={"torch": replies[0].torch if replies else "unknown", "python": python},
            settings={**settings, "cores": str(num_cores or "unknown")},
            began=states[0],
            ended=states[1],
            rows=tuple(rows),
            warnings=(*warnings, *dict.fromkeys(doubts), *spill_warnings(rows, self._machine)),
        )

    def _limits(self, device: str) -> ProductLimits | str:
        """Matrix products by dtype, as `flatout bench limits` has measured them, or why not."""
        limits = usable_limits(self._machine, device)
        if isinstance(limits, str):
            return limits
        medians = {one: known_limit(limits, f"limits/matmul/{one}") for one in _DTYPES}
        return {dtype: limit for dtype, limit in medians.items() if limit is not None}
