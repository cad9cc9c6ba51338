"""Predicts inside a cluster: in its role `inference`, which no training uses.

Each question gets a container of that role for itself, which is removed with its answer. The
workers are not interrupted, and need not run at all.
"""

from __future__ import annotations

import secrets
from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import msgspec

from flatout import __version__
from flatout.cluster.compose import docker
from flatout.cluster.compose.docker import Compose
from flatout.cluster.compose.env_file import engine_in
from flatout.cluster.files import Folder, open_folder, services_in
from flatout.errors import UsageError
from flatout.runs import api as runs_api
from flatout.runs import predict_inputs, predict_process
from flatout.schema.finding import Finding, option_without_effect
from flatout.schema.predict_protocol import (
    AnyReply,
    InferenceRequest,
    Loaded,
    Noted,
    Predicted,
    PredictJob,
    ProcessFailed,
    Refused,
    Verb,
    Written,
    check_output,
)
from flatout.system.host_system import LocalSystem, System
from flatout.system.store import run_folder
from flatout.system.store.run_folder import RunFolder

ROLE = "inference"
_VERSION = "import flatout; print(flatout.__version__)"


def predict(request: InferenceRequest) -> Generator[AnyReply]:
    """Predictions of a run's saved weights, like `runs.predict.predict`.

    Args:
        request: with paths of this machine, below the folders that the cluster's nodes share.

    Raises:
        UsageError: no-input, unknown-output-format, unknown-run, no-cluster-here, run-not-shared,
            data-not-shared, cluster-cannot-predict, cluster-not-up, cluster-versions-differ.
    """
    check_output(request.output)
    run, folder = run_folder.find_run(request.run), open_folder(None)
    typed = predict_inputs.expand_inputs(request.inputs)
    inputs = tuple(_inside(folder, path) for path in typed)
    job = job_inside(request, "predict", run, folder, inputs)
    output = _shared(folder, request.output) if request.output else None
    job = msgspec.structs.replace(job, output=output)
    return _stream_replies(request, job, run, folder, dict(zip(inputs, typed, strict=True)))


def evaluate(request: InferenceRequest) -> Generator[AnyReply]:
    """The validation metrics of a run's saved weights, like `runs.predict.evaluate`.

    Raises:
        UsageError: as `predict`; unknown-parameter, bad-parameter-value.
    """
    run, folder = run_folder.find_run(request.run), open_folder(None)
    job = job_inside(request, "evaluate", run, folder)
    return _stream_replies(request, job, run, folder, {})


def job_inside(
    request: InferenceRequest,
    verb: Verb,
    run: RunFolder,
    folder: Folder,
    inputs: tuple[str, ...] = (),
) -> PredictJob:
    """The question with the paths that the role sees.

    Raises:
        UsageError: run-not-shared, data-not-shared; as `runs.api.predict_job`.
    """
    job = runs_api.predict_job(request, verb, run, inputs)
    experiment = job.experiment
    if experiment is not None and Path(experiment).is_absolute():
        experiment = _shared(folder, experiment)
    inside = folder.run_inside(run.path)
    return msgspec.structs.replace(job, folder=inside, experiment=experiment)


def _stream_replies(
    request: InferenceRequest,
    job: PredictJob,
    run: RunFolder,
    folder: Folder,
    inputs: Mapping[str, str],
) -> Generator[AnyReply]:
    """The answers, with the names that were typed. inputs: typed names by those inside."""
    run_folder.require_trust(run, is_trusted=request.is_trusted)
    system = LocalSystem()
    program = require_role(folder, system)
    for finding in without_effect(request):
        yield Noted(finding=finding)
    name = f"{folder.name}-{ROLE}-{secrets.token_hex(4)}"
    words = python_words(program, folder, "--name", name)
    try:
        for reply in predict_process.stream_replies(words, job, output_here=request.output):
            if isinstance(reply, ProcessFailed) and reply.has_traceback:
                reply = reply.kept_in(str(runs_api.record_crash(reply.printed)))
            yield _as_typed(reply, inputs, request.output)
    finally:
        # An interrupted Compose v1 cannot remove it.
        docker.remove(name, system)


def _as_typed(reply: AnyReply, inputs: Mapping[str, str], output: str | None) -> AnyReply:
    if isinstance(reply, Predicted | Refused):
        return msgspec.structs.replace(reply, input=inputs.get(reply.input, reply.input))
    if isinstance(reply, Loaded) and inputs:
        return msgspec.structs.replace(reply, longest_input=max(map(len, inputs.values())))
    if isinstance(reply, Written) and output is not None:
        return msgspec.structs.replace(reply, path=str(Path(output).expanduser().absolute()))
    return reply


def python_words(program: Compose, folder: Folder, *options: str) -> list[str]:
    """The words that lead to Python in a container of the role."""
    return program.argv(folder.path, "run", "--rm", "-T", "--no-deps", *options, ROLE, "python3")


def require_role(folder: Folder, system: System) -> Compose:
    """Compose, once the role has answered with the version that is running here.

    Raises:
        UsageError: cluster-cannot-predict, cluster-not-up, cluster-versions-differ,
            docker-not-answering, compose-missing, compose-file-refused.
    """
    engine_in(folder.settings)
    program = docker.find_compose(system)
    if ROLE not in [service.name for service in services_in(program, folder, system)]:
        raise UsageError(
            "cluster-cannot-predict",
            f"the cluster in {folder.path} has no service `{ROLE}`.",
            fix="run `flatout cluster init DIR` and copy the service from its compose.yaml",
        )
    built = system.run(["docker", "image", "inspect", folder.name], docker.ASK_LIMIT_S)
    if built.exit_code != 0:
        raise UsageError(
            "cluster-not-up",
            f"the image of cluster {folder.name} has not been built.",
            fix="flatout cluster up",
        )
    done = system.run([*python_words(program, folder), "-P", "-c", _VERSION], docker.ASK_LIMIT_S)
    version = done.stdout.strip()
    if done.exit_code != 0:
        raise UsageError(
            "cluster-cannot-predict",
            f"the service `{ROLE}` of cluster {folder.name} does not start.",
            because=done.reason or done.stderr.strip()[-400:] or f"exit code {done.exit_code}",
            fix="flatout cluster check",
        )
    if version != __version__:
        raise UsageError(
            "cluster-versions-differ",
            f"the image of the cluster has flatout {version}; here is {__version__}.",
            because="both must be the same version",
            fix="flatout cluster up puts this one into the image",
        )
    return program


def _inside(folder: Folder, text: str) -> str:
    """An input as the role sees it: a local file, else a text or a path in the nodes' data."""
    try:
        is_file = Path(text).exists()
    except (OSError, ValueError):
        return text  # A text that is too long for a name.
    return _shared(folder, text) if is_file else text


def _shared(folder: Folder, text: str) -> str:
    return folder.data_inside(text, "leave out --on to predict on this machine")


def without_effect(request: InferenceRequest) -> Iterator[Finding]:
    """Findings about options that the role does not use."""
    given = {"--python": request.python, "--env": request.env}
    for option, value in given.items():
        if value is not None:
            yield option_without_effect(
                option, "the cluster's image does the computation", f"leave out {option}"
            )
