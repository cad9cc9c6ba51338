"""The request to predict with a run's saved weights, and the lines of the reply.

A job goes to a process of its own as one JSON document; its replies come back as JSON lines.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from flatout.errors import UsageError
from flatout.schema.experiment_spec import Value
from flatout.schema.finding import Finding, Fix
from flatout.schema.key_values import split_pairs
from flatout.schema.recipe import parse_field
from flatout.schema.run_lines import Classified

# A file of predictions is recognized by its ending; anything else is a folder.
OUTPUT_ENDINGS = (".jsonl", ".csv", ".npy")
# What a folder holds next to the pictures.
ROWS_IN_FOLDER = "predictions.jsonl"

Verb = Literal["predict", "evaluate"]


class InferenceRequest(msgspec.Struct, frozen=True, kw_only=True):
    """The command line of `flatout predict` or `flatout evaluate` as data.

    experiment: a built-in's name or a file, in place of the one that the run keeps.
    settings, uses: `key=value` texts for the experiment's parameters and for recipe fields.
    device: `auto`, or a recipe's device. batch_size: None takes the experiment's.
    top: how many classes are reported per sample. output: a file or folder for the predictions.
    env: name of an environment of `flatout setup`, in place of `python`.
    is_trusted: a run outside of the runs' folder may run its code.
    """

    run: str
    inputs: tuple[str, ...] = ()
    experiment: str | None = None
    settings: tuple[str, ...] = ()
    uses: tuple[str, ...] = ()
    device: str = "auto"
    batch_size: int | None = None
    top: int = 1
    output: str | None = None
    python: str | None = None
    env: str | None = None
    is_trusted: bool = False

    @property
    def fixed(self) -> dict[str, Any]:
        """The recipe fields that the user fixed, by their types.

        Raises:
            UsageError: bad-setting, set-twice, unknown-recipe-field, bad-recipe-value.
        """
        device = () if self.device == "auto" else (f"device={self.device}",)
        pairs = split_pairs([*self.uses, *device], "--use")
        return {name: parse_field(name, text) for name, text in pairs}


class PredictJob(msgspec.Struct, frozen=True, kw_only=True):
    """The request to the process. folder: of the run; its files are only read.

    parameters: arguments of `experiment(...)` that differ from the run's.
    experiment: as in the request, a file by its whole path.
    """

    verb: Verb
    folder: str
    experiment: str | None = None
    inputs: tuple[str, ...] = ()
    parameters: dict[str, Value] = {}
    fixed: dict[str, Any] = {}
    batch_size: int | None = None
    top: int = 1
    output: str | None = None

    @classmethod
    def of(
        cls,
        request: InferenceRequest,
        verb: Verb,
        folder: str,
        *,
        inputs: tuple[str, ...] = (),
        parameters: dict[str, Value] | None = None,
        experiment: str | None = None,
    ) -> PredictJob:
        """A request about a run's folder, with what was found out about it."""
        return cls(
            verb=verb,
            folder=folder,
            experiment=experiment,
            inputs=inputs,
            parameters=parameters or {},
            fixed=request.fixed,
            batch_size=request.batch_size,
            top=request.top,
            output=request.output,
        )


class Reply(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind"):
    """A line of what comes back."""


class Loaded(Reply, frozen=True, kw_only=True, tag="loaded"):
    """The weights are ready. step: theirs; recorded: the run's metrics for them.

    longest_input: letters of the longest of its num_inputs inputs.
    """

    step: int
    recorded: dict[str, float | None]
    device: str
    precision: str
    unit: str
    num_inputs: int = 0
    longest_input: int = 0


class Noted(Reply, frozen=True, kw_only=True, tag="noted"):
    """Something worth knowing; it continues."""

    finding: Finding


class Predicted(Reply, frozen=True, kw_only=True, tag="predicted"):
    """The prediction for a sample.

    input: as it was typed, or as it is in a folder.
    row: which of the input's samples, from 0; None where it has only one.
    values: by name, JSON's own kinds.
    """

    input: str
    row: int | None = None
    values: dict[str, Any] = {}


class Refused(Reply, frozen=True, kw_only=True, tag="refused"):
    """An input that cannot be predicted; the others are."""

    input: str
    finding: Finding


class Counted(Reply, frozen=True, kw_only=True, tag="counted"):
    """Progress of the predictions."""

    num_inputs: int
    num_samples: int


class Written(Reply, frozen=True, kw_only=True, tag="written"):
    """The predictions are in this file or folder."""

    path: str


class Evaluated(Reply, frozen=True, kw_only=True, tag="evaluated"):
    """Metrics over the whole validation data, now, and which classes were taken for which.

    differences: what is not as it was when they were recorded.
    """

    metrics: dict[str, float | None]
    differences: tuple[str, ...] = ()
    classified: tuple[Classified, ...] = ()


class ProcessFailed(Reply, frozen=True, kw_only=True, tag="broken"):
    """It could not continue. exit_code: 1 or 2 as errors have it, 3 for our own fault.

    printed: by the process, its traceback among it.
    """

    finding: Finding
    exit_code: int
    printed: str = ""

    @property
    def has_traceback(self) -> bool:
        """Whether more than its finding is worth keeping."""
        is_code = self.finding.rule in ("experiment-raised", "internal-error", "prediction-died")
        return is_code and bool(self.printed.strip())

    def kept_in(self, path: str) -> ProcessFailed:
        """The same, with the file in which what was printed is kept."""
        last = tuple(line for line in self.printed.splitlines() if line.strip())[-1:]
        fixes = (Fix(text=f"read the log with the traceback: {path}"),)
        finding = msgspec.structs.replace(self.finding, evidence=last, fixes=fixes)
        return msgspec.structs.replace(self, finding=finding)


AnyReply = Loaded | Noted | Predicted | Refused | Counted | Written | Evaluated | ProcessFailed


def check_output(output: str | None) -> None:
    """Refuses a file for predictions whose ending says nothing we can write.

    Raises:
        UsageError: unknown-output-format.
    """
    name = (output or "").replace("\\", "/").rpartition("/")[2]
    ending = name[name.rfind(".") :] if "." in name.lstrip(".") else ""
    if ending and ending not in OUTPUT_ENDINGS:
        raise UsageError(
            "unknown-output-format",
            f"`--output {output}`: unsupported file type `{ending}`.",
            fix=f"use {', '.join(OUTPUT_ENDINGS)}, or name a folder",
        )
