"""A run's weights asked inside a cluster: in its role `inference`, which no training uses.

Each question gets a container of that role for itself, which is removed with its answer. The
workers go on with what they have, and need not run at all.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from pathlib import Path

import msgspec

from flatout import __version__, flow
from flatout.cluster.settings import engine_in
from flatout.clustering.files import Folder, open_folder, services_in
from flatout.errors import UsageError
from flatout.nouns.finding import option_without_effect
from flatout.nouns.question import (
    AnyAnswer,
    Broken,
    InferenceRequest,
    Loaded,
    Noted,
    Predicted,
    Question,
    Refused,
    Verb,
    Written,
    check_output,
)  # fmt: skip
from flatout.system import answering, compose, input_names, runs
from flatout.system.runs import RunFolder
from flatout.system.system import LocalSystem, System

ROLE = "inference"
_VERSION = "import flatout; print(flatout.__version__)"


def predict(request: InferenceRequest) -> Generator[AnyAnswer]:
    """What the kept weights of a run say of inputs, as `inference.predict` tells it.

    Args:
        request: with paths of this machine, below the folders that the cluster's nodes share.

    Raises:
        UsageError: no-input, unknown-output-format, unknown-run, no-cluster-here, run-not-shared,
            data-not-shared, cluster-cannot-predict, cluster-not-up, cluster-versions-differ.
    """
    check_output(request.output)
    run, folder = runs.find_run(request.run), open_folder(None)
    typed = input_names.expand_inputs(request.inputs)
    inputs = tuple(_inside(folder, one) for one in typed)
    question = _question_inside(request, "predict", run, folder, inputs)
    output = _shared(folder, request.output) if request.output else None
    question = msgspec.structs.replace(question, output=output)
    return _ask(request, question, run, folder, dict(zip(inputs, typed, strict=True)))


def evaluate(request: InferenceRequest) -> Generator[AnyAnswer]:
    """The validation metrics of a run's kept weights, as `inference.evaluate` tells them.

    Raises:
        UsageError: as `predict`; unknown-parameter, bad-parameter-value.
    """
    run, folder = runs.find_run(request.run), open_folder(None)
    question = _question_inside(request, "evaluate", run, folder)
    return _ask(request, question, run, folder, {})


def _question_inside(
    request: InferenceRequest,
    verb: Verb,
    run: RunFolder,
    folder: Folder,
    inputs: tuple[str, ...] = (),
) -> Question:
    """The question with the paths that the role sees."""
    question = flow.question_of(request, verb, run, inputs)
    experiment = question.experiment
    if experiment is not None and Path(experiment).is_absolute():
        experiment = _shared(folder, experiment)
    inside = _run_inside(folder, run)
    return msgspec.structs.replace(question, folder=inside, experiment=experiment)


def _ask(
    request: InferenceRequest,
    question: Question,
    run: RunFolder,
    folder: Folder,
    inputs: Mapping[str, str],
) -> Generator[AnyAnswer]:
    """The answers, with the names that were typed. inputs: typed names by those inside."""
    runs.require_trust(run, is_trusted=request.is_trusted)
    words = _require_role(folder, LocalSystem())
    yield from _without_effect(request)
    for answer in answering.ask(words, question, output_here=request.output):
        if isinstance(answer, Broken) and answer.has_traceback:
            answer = answer.kept_in(str(flow.record_crash(answer.printed)))
        yield _as_typed(answer, inputs, request.output)


def _as_typed(answer: AnyAnswer, inputs: Mapping[str, str], output: str | None) -> AnyAnswer:
    if isinstance(answer, Predicted | Refused):
        return msgspec.structs.replace(answer, input=inputs.get(answer.input, answer.input))
    if isinstance(answer, Loaded) and inputs:
        return msgspec.structs.replace(answer, longest_input=max(map(len, inputs.values())))
    if isinstance(answer, Written) and output is not None:
        return msgspec.structs.replace(answer, path=str(Path(output).expanduser().absolute()))
    return answer


def _require_role(folder: Folder, system: System) -> tuple[str, ...]:
    """The words that lead to Python in a container of the role.

    Raises:
        UsageError: cluster-cannot-predict, cluster-not-up, cluster-versions-differ,
            docker-not-answering, compose-missing, compose-file-refused.
    """
    engine_in(folder.settings)
    program = compose.find_compose(system)
    if ROLE not in [one.name for one in services_in(program, folder, system)]:
        raise UsageError(
            "cluster-cannot-predict",
            f"the cluster in {folder.path} has no service `{ROLE}`.",
            fix="flatout cluster init DIR, into another folder, writes one to copy",
        )
    built = system.run(["docker", "image", "inspect", folder.name], compose.ASK_LIMIT_S)
    if built.exit_code != 0:
        raise UsageError(
            "cluster-not-up",
            f"the image of the cluster {folder.name} has not been built.",
            fix="flatout cluster up",
        )
    words = ("run", "--rm", "-T", "--no-deps", ROLE, "python3")
    leading = tuple(program.argv(folder.path, *words))
    told = system.run([*leading, "-P", "-c", _VERSION], compose.ASK_LIMIT_S)
    version = told.stdout.strip()
    if told.exit_code != 0:
        raise UsageError(
            "cluster-cannot-predict",
            f"the service `{ROLE}` of the cluster {folder.name} does not start.",
            because=told.reason or told.stderr.strip()[-400:] or f"exit code {told.exit_code}",
            fix="flatout cluster check",
        )
    if version != __version__:
        raise UsageError(
            "cluster-versions-differ",
            f"the image of the cluster has flatout {version}; here is {__version__}.",
            because="a question is only understood by the same version",
            fix="flatout cluster up puts this one into the image",
        )
    return leading


def _run_inside(folder: Folder, run: RunFolder) -> str:
    inside = folder.inside(run.path)
    if inside is None:
        raise UsageError(
            "run-not-shared",
            f"{run.path} is not seen by the nodes of the cluster.",
            because=f"they see {folder.shared('CLUSTER_RUNS')}, as CLUSTER_RUNS in .env says",
            fix="flatout cluster init writes the folder of runs that is used here",
        )
    return inside


def _inside(folder: Folder, text: str) -> str:
    """An input as the role sees it; what is no file here is a text, or lies in the nodes' data."""
    try:
        is_file = Path(text).exists()
    except (OSError, ValueError):
        return text  # A text that is too long for a name.
    return _shared(folder, text) if is_file else text


def _shared(folder: Folder, text: str) -> str:
    return folder.data_inside(text, "leave --on out: this machine predicts")


def _without_effect(request: InferenceRequest) -> Iterator[Noted]:
    given = {"--python": request.python, "--env": request.env}
    for option, value in given.items():
        if value is not None:
            finding = option_without_effect(
                option, "the cluster's image is what computes", f"leave {option} out"
            )
            yield Noted(finding=finding)
