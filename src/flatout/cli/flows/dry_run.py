"""`flatout train --dry-run`: tries one batch of each kind, reports, saves nothing."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from flatout.cli.render import show
from flatout.cli.render.live import Waiting
from flatout.cli.render.wording import DOT, metric_text, validated_name
from flatout.errors import UsageError
from flatout.runs import api as runs_api
from flatout.schema.dry_run import BatchSummary, DryRunResult
from flatout.schema.finding import Finding
from flatout.schema.run_lines import DryRan, Warned
from flatout.schema.train_request import TrainRequest
from flatout.schema.units import bytes_text, count_text, counted_text, seconds_text


class DryRunReport(msgspec.Struct, frozen=True, kw_only=True):
    """A dry run as one JSON document. dry_run: None where it failed; finding says why."""

    dry_run: DryRunResult | None
    finding: Finding | None
    warnings: tuple[Finding, ...]
    exit_code: int


def run(request: TrainRequest, *, is_json: bool, is_detached: bool) -> int:
    """Makes a dry run and shows what it found; gives the exit code.

    Raises:
        UsageError: cannot-be-combined; and what a training would be refused for.
    """
    if is_detached:
        raise UsageError(
            "cannot-be-combined",
            "`--dry-run` cannot be combined with `--detach`.",
            because="a dry run takes seconds and only prints a report",
            fix="leave one of them out",
        )
    warnings: list[Finding] = []
    result: DryRunResult | None = None
    with runs_api.interrupts() as interrupts, Waiting("trying one batch ...") as waiting:
        supervisor = runs_api.begin(request, interrupts)
        try:
            for lines in runs_api.follow(supervisor, interrupts):
                warnings += [line.finding for line in lines if isinstance(line, Warned)]
                result = next((line.result for line in lines if isinstance(line, DryRan)), result)
            outcome = runs_api.conclude(supervisor)
            log = runs_api.record_log(supervisor.folder) if outcome.exit_code == 3 else None
        finally:
            runs_api.discard(supervisor.folder)
        waiting.stop()
        report = DryRunReport(
            dry_run=result,
            finding=outcome.finding,
            warnings=tuple(warnings),
            exit_code=outcome.exit_code,
        )
        for warning in warnings:
            show.print_finding(warning)
        if outcome.finding is not None and not interrupts.count:
            show.print_finding(outcome.finding)
        if log is not None:
            show.print_note(f"the traceback is in {log}")
        if is_json:
            show.print_json(report)
        elif result is not None:
            show.print_lines(show.make_console(), _lines(result))
        return 130 if interrupts.count else outcome.exit_code


def _lines(result: DryRunResult) -> Iterator[tuple[str, str]]:
    frozen = result.num_parameters - result.num_trained
    yield "model", DOT.join([
        counted_text(result.num_parameters, "weight"),
        *([f"{count_text(frozen)} of them frozen"] if frozen else []),
        result.device, result.precision,
        *([f"{bytes_text(result.peak_memory_bytes)} of memory"]
          if result.peak_memory_bytes else []),
    ])  # fmt: skip
    yield "train", _batch_text(result.train, result.unit)
    losses = DOT.join(f"{name} {_number(value)}" for name, value in result.losses.items())
    rate = f"learning rate {result.learning_rate:g}"
    yield "step", DOT.join([losses, rate, f"{seconds_text(result.step_s)} for the first step"])
    if result.validation is None:
        yield "validation", "none"
    else:
        yield "validation", _batch_text(result.validation, result.unit)
        named = [f"{validated_name(n)} {metric_text(n, v)}" for n, v in result.metrics.items()]
        yield "metrics", DOT.join([*named, f"best by {result.best}"])
    yield "length", _length_text(result)
    works = (
        "one step works" if result.validation is None else "one step and one validation batch work"
    )
    yield "result", f"{works}; nothing was saved"


def _batch_text(batch: BatchSummary, unit: str) -> str:
    of = f"{count_text(batch.num_samples)} {unit}" if batch.num_samples is not None else unit
    shapes = ", ".join(batch.shapes) or "no tensors"
    return DOT.join([of, f"a batch of {count_text(batch.size)}: {shapes}"])


def _length_text(result: DryRunResult) -> str:
    steps = counted_text(result.num_steps, "step") if result.num_steps is not None else None
    epochs = counted_text(result.num_epochs, "epoch") if result.num_epochs is not None else None
    return DOT.join(filter(None, [epochs, steps])) or "unknown"


def _number(value: float | None) -> str:
    return "not finite" if value is None else f"{value:.4g}"
