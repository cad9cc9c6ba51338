"""What replicas of a model are started: from which file, in which environment, on what devices."""

from __future__ import annotations

from pathlib import Path

import msgspec

from flatout.compat import torch_needed
from flatout.errors import UsageError
from flatout.runs import api as runs_api
from flatout.schema.finding import Finding, option_without_effect
from flatout.schema.placement import num_gpus_for
from flatout.schema.run import RunHeader
from flatout.schema.serve_control import ReplicaPlan
from flatout.schema.serve_model import ServedModel
from flatout.schema.serve_protocol import ReplicaStart
from flatout.schema.serve_request import ModelRequest, ServeRequest
from flatout.serve.batching import BatchTimes
from flatout.system import atomic_files, process_env
from flatout.system.cpu_name import num_usable_cores
from flatout.system.replica_process import replica_command
from flatout.system.store import interpreters, run_folder

# CPU time of the server for a request of one sample, measured with `mnist` in JSON on an AMD EPYC.
_SERVER_S = 0.2e-3
# Files of `flatout export` that can be served; anything else is a run.
EXPORTED = (".onnx", ".pt2")


class ModelSource(msgspec.Struct, frozen=True, kw_only=True):
    """A model that was found, and what starts a replica of it.

    place: where replicas compute, as it is shown: an interpreter, or a cluster. command: starts
    one. start: the first message to it, without its device. device: that the model was trained
    on, `cpu` for a file. num_gpus: that a replica can use. has_own_cores: replicas do not share the
    CPU cores of this machine.
    """

    name: str
    place: str
    command: tuple[str, ...]
    start: ReplicaStart
    device: str = "cpu"
    num_gpus: int = 0
    has_own_cores: bool = False
    findings: tuple[Finding, ...] = ()


def is_exported(model: str) -> bool:
    """Whether it names an exported file, not a run."""
    return Path(model).suffix.lower() in EXPORTED


def find_model(request: ModelRequest) -> ModelSource:
    """Finds a run or a file, and the interpreter for it.

    Raises:
        UsageError: unknown-run, run-from-elsewhere, exported-file-not-found; what finding the
            experiment and choosing an interpreter says.
    """
    return _exported(request) if is_exported(request.model) else _run(request)


def _run(request: ModelRequest) -> ModelSource:
    folder = run_folder.find_run(request.model)
    run_folder.require_trust(folder, is_trusted=request.is_trusted)
    job = runs_api.predict_job(request.inference, "predict", folder)
    run = run_folder.read_run(folder)
    header = atomic_files.read_json(folder.header, RunHeader)
    python, version = interpreters.resolve_with_flatout(
        request.python, request.env, default=header.python
    )
    machine = runs_api.probe(python)
    torch_needed.require_torch(machine, version)
    return ModelSource(
        name=folder.path.name,
        place=python,
        command=replica_command(python),
        start=ReplicaStart(
            model=job.folder,
            experiment=job.experiment,
            parameters=dict(job.parameters),
            fixed=job.fixed,
        ),
        device=run.recipe.device.value if run.recipe is not None else "cpu",
        num_gpus=num_gpus_for(machine, process_env.visible_gpus()),
    )


def _exported(request: ModelRequest) -> ModelSource:
    path = Path(request.model).expanduser().absolute()
    if not path.is_file():
        raise UsageError(
            "exported-file-not-found",
            f"there is no file {request.model}",
            fix="write it: flatout export RUN --to onnx",
        )
    python, version = interpreters.resolve_with_flatout(request.python, request.env)
    machine = runs_api.probe(python)
    if path.suffix.lower() == ".pt2":
        torch_needed.require_torch(machine, version)
    unused = {"--experiment": request.experiment, "--set": request.settings}
    because = "an exported file has its experiment's parameters in it"
    return ModelSource(
        name=path.name,
        place=python,
        command=replica_command(python),
        start=ReplicaStart(model=str(path), fixed=request.fixed),
        num_gpus=num_gpus_for(machine, process_env.visible_gpus()),
        findings=tuple(
            option_without_effect(option, because, "leave it out")
            for option, value in unused.items()
            if value
        ),
    )


def template_of(source: ModelSource) -> ReplicaPlan:
    """The model for a running server, which knows how many replicas it has, and where."""
    return ReplicaPlan(name=source.name, command=source.command, starts=(source.start,))


def plan_replicas(source: ModelSource, request: ServeRequest) -> ReplicaPlan:
    """The replicas of a new server."""
    num_threads = num_cores = None
    if source.has_own_cores:
        devices: list[str | None] | None = [None] * (request.num_replicas or 1)
    else:
        devices = _devices(source, request.num_replicas)
    if devices is None:
        # A core is left for the server, at least until a replica has measured.
        usable = num_usable_cores()
        cores = max(1, usable - 1)
        fixed = source.start.fixed.get("num_threads")
        num_replicas = request.num_replicas or max(1, cores // (fixed or 1))
        is_run = not is_exported(source.start.model)
        if is_run and usable > 1 and request.num_replicas is None and fixed is None:
            # A large model is better served by few replicas with several threads.
            num_replicas, num_cores = 1, usable
        devices = [None] * num_replicas
        num_threads = max(1, cores // num_replicas) if fixed is None else None
    start = msgspec.structs.replace(
        source.start,
        max_samples=request.max_samples,
        latency_s=request.latency_s,
        num_threads=num_threads,
        spares_threads=num_cores is not None,
    )
    return ReplicaPlan(
        name=source.name,
        command=source.command,
        starts=tuple(_on(start, name) for name in devices),
        latency_s=request.latency_s if request.max_samples is None else None,
        num_cores=num_cores,
    )


def shared_out(plan: ReplicaPlan, model: ServedModel, num_more: int) -> ReplicaPlan:
    """As many replicas as there are cores and memory for.

    Args:
        plan: with `num_cores`, and one start.
        model: of its replica, which has measured batches and how many threads it needs.
        num_more: how many more of it fit into memory.
    """
    assert plan.num_cores is not None
    num_threads = model.num_threads or 1
    is_shared = not _needs_own_core(plan.num_cores, model, plan.latency_s)
    num_cores = plan.num_cores if is_shared else plan.num_cores - 1
    start = msgspec.structs.replace(plan.starts[0], num_threads=num_threads, spares_threads=False)
    count = max(1, min(num_cores // num_threads, 1 + num_more))
    return msgspec.structs.replace(plan, starts=(start,) * count, num_cores=None)


def _needs_own_core(num_cores: int, model: ServedModel, latency_s: float | None) -> bool:
    """Whether the server has enough to do for a core that no replica uses.

    False where requests take the replicas so long that this core would mostly be idle.
    """
    times = BatchTimes(model, latency_s)
    batch_s = times.expected_s(times.limit)
    if batch_s is None:
        return True
    core_s = batch_s / times.limit * (model.num_threads or 1)
    # Busy for half of the time at least, while the other cores compute.
    return core_s < 2 * (num_cores - 1) * _SERVER_S


def plan_like(new: ReplicaPlan, old: ReplicaPlan) -> ReplicaPlan:
    """The same number of replicas, on the same devices, of another model.

    Args:
        new: the other model, with one start. What it fixes wins.
        old: the plan of the model that it replaces.
    """
    template = new.starts[0]
    starts = []
    for start in old.starts:
        kept = {name: value for name, value in start.fixed.items() if name == "device"}
        starts.append(
            msgspec.structs.replace(
                template,
                fixed={**kept, **template.fixed},
                max_samples=start.max_samples,
                latency_s=start.latency_s,
                num_threads=start.num_threads,
            )
        )
    return msgspec.structs.replace(
        old, name=new.name, command=new.command, starts=tuple(starts)
    )  # fmt: skip


def _devices(source: ModelSource, num_replicas: int | None) -> list[str | None] | None:
    """The device of each replica, None where the engine chooses; None: all compute on the CPU."""
    device = source.start.fixed.get("device")
    wanted = device or source.device
    if not wanted.startswith("cuda") or (device is None and source.num_gpus == 0):
        return None
    if ":" in wanted or source.num_gpus < 2:
        return [None] * (num_replicas or 1)
    return [f"cuda:{number % source.num_gpus}" for number in range(num_replicas or source.num_gpus)]


def _on(start: ReplicaStart, device: str | None) -> ReplicaStart:
    if device is None:
        return start
    return msgspec.structs.replace(start, fixed={**start.fixed, "device": device})
