"""The turns of a comparison: each framework's fastest way is found, then all take turns."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

import msgspec

from flatout.bench.api import known_limit, usable_limits
from flatout.bench.framework_programs import FrameworkWay, ProgramResult, run_program
from flatout.bench.framework_rows import FrameworkWorkload, WayRows, WaySamples
from flatout.bench.limits import Doing, error_from
from flatout.errors import RunFailed
from flatout.schema.bench import BenchFile, BenchRow
from flatout.schema.framework_protocol import (
    AnyDataReply,
    FrameworkData,
    FrameworkDataRequest,
    FrameworkTask,
    Scored,
)
from flatout.schema.machine import Machine
from flatout.schema.predict_protocol import ProcessFailed
from flatout.system.json_process import JsonProcess, ProcessEnded
from flatout.system.worker_process import ending_text

_LIMIT = "limits/matmul/fp32"
_DATA = "flatout.engine.bench.framework_data"
# Of the loss after a few steps without dropout, from that of a plain loop: what rounding may do.
_SAME_LOSS = 1e-3
_CHECKED_STEPS = 3
# Only for choosing among a framework's variants.
_NUM_TRIAL_BLOCKS, _TRIAL_BLOCK_S = 3, 0.1
# Of the order of samples; after the last one, the first comes again.
_NUM_EPOCHS = 10
# Scoring must not take longer than training; all frameworks score the same samples.
_NUM_VALIDATION = 2000


class FrameworksRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What is compared. frameworks: with the interpreter that the user has named, if any.

    device: `cpu` or `cuda:N`. num_processes: per way; each has a seed of its own.
    """

    workloads: tuple[str, ...]
    frameworks: dict[str, str | None]
    device: str
    is_quick: bool = False

    @property
    def num_processes(self) -> int:
        """Processes of each way, and seeds."""
        return 3 if self.is_quick else 5

    @property
    def blocks(self) -> tuple[int, float]:
        """Blocks of steps in a process, and the least seconds of one."""
        return (3, 0.1) if self.is_quick else (5, 0.3)

    @property
    def settings(self) -> dict[str, str]:
        """As text, for the file."""
        num_blocks, block_s = self.blocks
        return {
            "device": self.device,
            "effort": "quick" if self.is_quick else "full",
            # Not where they are.
            "frameworks": ",".join(self.frameworks),
            "num_processes": str(self.num_processes),
            "num_blocks": str(num_blocks),
            "block_s": f"{block_s:g}",
        }


class Turns:
    """The measurement of one workload. versions: of the frameworks, by the name of their way.

    Args:
        python: an interpreter with torch and this flatout.
        machine: its facts.
        request: what is compared.
        workload: what is trained.
    """

    def __init__(
        self,
        python: str,
        machine: Machine,
        request: FrameworksRequest,
        workload: FrameworkWorkload,
    ) -> None:
        self._python = python
        self._machine = machine
        self._request = request
        self._workload = workload
        self._chosen: dict[str, tuple[FrameworkWay, str, dict[str, object]]] = {}
        self._num_parts = 1
        self._num_done = 0
        self.versions: dict[str, str] = {}

    def measure(self, ways: Sequence[FrameworkWay]) -> Iterator[Doing | BenchRow]:
        """All rows, after what is done for them.

        Raises:
            UsageError: dataset-not-downloaded, and others of the experiment.
            RunFailed: bench-worker-died.
        """
        num_variants = sum(len(way.variants) for way in ways)
        self._num_parts = num_variants + len(ways) * self._request.num_processes
        with tempfile.TemporaryDirectory(prefix="flatout-bench-") as folder:
            yield Doing(what=f"{self._workload.name}: data and initial weights", done=0.0)
            data = written_data(self._python, self._request, self._workload, folder)
            yield from self._choose(ways, data)
            samples = {name: WaySamples() for name in self._chosen}
            yield from self._take_turns(data, samples)
            for name, one in samples.items():
                yield from self.rows_of(name).measured(data, one)

    def rows_of(self, way: str) -> WayRows:
        """What makes the rows of a way."""
        limits = usable_limits(self._machine, self._request.device)
        return WayRows(
            workload=self._workload,
            way=way,
            device=self._request.device,
            num_threads=num_threads_of(self._machine),
            limit=known_limit(limits, _LIMIT) if isinstance(limits, BenchFile) else None,
            no_limit=limits if isinstance(limits, str) else None,
        )

    def _choose(
        self, ways: Sequence[FrameworkWay], data: FrameworkData
    ) -> Iterator[Doing | BenchRow]:
        """Finds the fastest variant of each way; a row if none can be measured."""
        reference: Scored | None = None
        for way in _plain_first(ways, self._python):
            tried: dict[str, ProgramResult | str] = {}
            for variant in way.variants:
                yield self._doing(f"{way.name} ({variant}), first steps")
                result = run_program(way, self._trial_task(data, variant))
                tried[variant] = result
                if way.name == "plain" and isinstance(result, ProgramResult):
                    reference = result.score
            if way not in ways:
                continue
            best = fastest(tried, reference)
            if best is None:
                yield from self.rows_of(way.name).unread(_reason(tried, reference))
                continue
            variant, result = best
            self.versions[way.name] = result.version
            self._chosen[way.name] = (way, variant, result.fields)

    def _take_turns(
        self, data: FrameworkData, samples: Mapping[str, WaySamples]
    ) -> Iterator[Doing]:
        """Measures in turns, each time with another one first: what disturbs one disturbs all."""
        names = list(self._chosen)
        total = self._request.num_processes
        for number in range(total):
            start = number % max(1, len(names))
            for name in [*names[start:], *names[:start]]:
                yield self._doing(f"{name}, process {number + 1} of {total}")
                way, variant, fields = self._chosen[name]
                task = self._task(data, variant, number)
                task = msgspec.structs.replace(task, recipe=fields)
                samples[name].add(run_program(way, task))

    def _doing(self, what: str) -> Doing:
        done = min(self._num_done / self._num_parts, 1.0)
        self._num_done += 1
        return Doing(what=f"{self._workload.name}: {what}", done=done)

    def _task(self, data: FrameworkData, variant: str, number: int) -> FrameworkTask:
        num_blocks, block_s = self._request.blocks
        return FrameworkTask(
            experiment=self._workload.experiment,
            parameters=self._workload.parameters,
            # What a search has found is not searched for again.
            variant="recipe" if variant in ("defaults", "compiled", "search") else variant,
            device=self._request.device,
            num_threads=num_threads_of(self._machine),
            seed=number + 1,
            data_file=data.data_file,
            weights_file=data.weights_files[number],
            layers=data.layers,
            loss=data.loss,
            optimizer=data.optimizer,
            pixels=data.pixels,
            steps_per_call=self._workload.steps_per_call,
            num_steps=self._workload.num_steps,
            num_blocks=num_blocks,
            block_s=block_s,
        )

    def _trial_task(self, data: FrameworkData, variant: str) -> FrameworkTask:
        calls = max(1, _CHECKED_STEPS // self._workload.steps_per_call)
        recipe: dict[str, object] = {"compiled": "both"} if variant == "compiled" else {}
        return msgspec.structs.replace(
            self._task(data, variant, 0),
            variant="recipe" if variant in ("defaults", "compiled") else variant,
            recipe=recipe,
            has_dropout=False,
            num_steps=calls * self._workload.steps_per_call,
            num_blocks=_NUM_TRIAL_BLOCKS,
            block_s=_TRIAL_BLOCK_S,
        )


def fastest(
    tried: Mapping[str, ProgramResult | str], reference: Scored | None
) -> tuple[str, ProgramResult] | None:
    """The variant with the shortest steps among those that compute the same; None if there is none.

    reference: of the plain loop; None if even that has failed, and nothing can be compared.
    """
    right = [
        (variant, result)
        for variant, result in tried.items()
        if isinstance(result, ProgramResult) and is_same(result.score, reference)
    ]
    return min(right, key=lambda one: median(one[1].step_s), default=None)


def is_same(score: Scored, reference: Scored | None) -> bool:
    """Whether a loss differs from the plain loop's by rounding only."""
    return reference is None or abs(score.loss - reference.loss) <= _SAME_LOSS * reference.loss


def num_threads_of(machine: Machine) -> int:
    """The threads that every framework has on the CPU: one for each core."""
    counts = [one for one in (machine.cpu.num_cores, machine.cpu.num_threads) if one]
    return min(counts, default=1)


def _reason(tried: Mapping[str, ProgramResult | str], reference: Scored | None) -> str:
    texts = []
    for variant, result in tried.items():
        if isinstance(result, str):
            texts.append(f"{variant}: {result}")
        elif reference is not None:
            texts.append(
                f"{variant}: computes something else: loss {result.score.loss:.5g} after the first "
                f"steps, where a plain loop has {reference.loss:.5g}"
            )
    return "; ".join(texts) or "it has no backend here"


def _plain_first(ways: Sequence[FrameworkWay], python: str) -> list[FrameworkWay]:
    """The ways, after a plain loop in torch: what all are compared with."""
    if any(way.name == "plain" for way in ways):
        return sorted(ways, key=lambda way: way.name != "plain")
    plain = FrameworkWay(name="plain", program="torch", python=python, variants=("plain",))
    return [plain, *ways]


def written_data(
    python: str, request: FrameworksRequest, workload: FrameworkWorkload, folder: str
) -> FrameworkData:
    """Has torch write data, weights and order into a folder.

    Raises:
        UsageError, RunFailed: what that process reports; bench-worker-died.
    """
    asked = FrameworkDataRequest(
        experiment=workload.experiment,
        parameters=workload.parameters,
        device=request.device,
        num_validation=_NUM_VALIDATION,
        seeds=tuple(range(1, request.num_processes + 1)),
        num_epochs=_NUM_EPOCHS,
        folder=folder,
    )
    with JsonProcess(python, _DATA) as process:
        try:
            for reply in process.ask(asked, AnyDataReply):
                if isinstance(reply, ProcessFailed):
                    raise error_from(reply.finding, reply.exit_code, reply.printed)
                data: FrameworkData = reply
                return data
            raise ProcessEnded(process.exit_code())
        except ProcessEnded as ended:
            raise RunFailed(
                "bench-worker-died",
                "the measuring process exited unexpectedly.",
                because=f"it {ending_text(ended.exit_code)}",
                fix="close programs that need memory, or measure less: --quick",
                printed=process.printed(),
            ) from ended
