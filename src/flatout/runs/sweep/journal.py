"""A sweep that is being carried out: on the disk, in Optuna, and as rows to show."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from flatout.errors import UsageError, nearest
from flatout.runs.sweep import result
from flatout.runs.sweep.proposals import Proposals
from flatout.schema.experiment_spec import Value
from flatout.schema.finding import Finding
from flatout.schema.run import Run
from flatout.schema.run_lines import Validated
from flatout.schema.sweep import (
    EndStatus,
    Sweep,
    SweepHeader,
    SweepTrial,
    TrialStatus,
    direction_of,
)
from flatout.system import atomic_files, clock
from flatout.system.store.run_reader import split_of
from flatout.system.store.sweep_folder import SweepFolder


class SweepJournal:
    """A sweep that is being carried out; its lock must be held.

    header: as it is now. trials: by number, as they stand.
    """

    def __init__(self, folder: SweepFolder, header: SweepHeader) -> None:
        self.header = header
        self.trials = result.trials_of(folder, header)
        self._folder = folder
        self._proposals = Proposals(header, self.trials.values())
        # Of the trials that have not ended: the metric by step.
        self._reports: dict[int, dict[int, float | None]] = {}
        atomic_files.write_json(folder.header, header)
        self._lines = atomic_files.Lines(folder.trials)

    def close(self) -> None:
        """Closes the file of the trials."""
        self._lines.close()

    def numbers(self) -> Iterator[int]:
        """Trials that were started and have not ended, then new ones."""
        yield from [number for number, one in self.trials.items() if not one.has_ended]
        yield from range(len(self.trials) + 1, self.header.num_trials + 1)

    def parameters(self, number: int) -> dict[str, Value]:
        """The parameters of a trial; of a new one they are chosen now."""
        if number not in self.trials:
            parameters = self._proposals.ask(number)
            self._write(
                SweepTrial(
                    at=clock.now_s(),
                    trial=number,
                    run=self.header.run_id(number),
                    parameters=parameters,
                )
            )
        return self.trials[number].parameters

    def settle_metric(self, best: str | None) -> None:
        """The first trial says what the experiment's `best` is; None without validation data.

        Raises:
            UsageError: no-validation-data.
        """
        if best is None:
            raise UsageError(
                "no-validation-data",
                "the experiment has no validation data, so its trials cannot be compared.",
                fix="add `validation_data` to the experiment",
            )
        if self.header.metric is None:
            direction = direction_of(best, self.header.direction)
            self.header = msgspec.structs.replace(self.header, metric=best, direction=direction)
            self._proposals.header = self.header
            atomic_files.write_json(self._folder.header, self.header)

    def report(self, number: int, line: Validated) -> bool:
        """Reports a validation; gives whether the pruner stops the trial.

        Raises:
            UsageError: unknown-metric.
        """
        metric = self.header.metric or ""
        if metric not in line.metrics:
            raise UsageError(
                "unknown-metric",
                f"the experiment reports no metric `{metric}`.",
                fix=nearest(metric, line.metrics),
            )
        reports = self._reports.setdefault(number, {})
        # Validations after a checkpoint come again when a run is resumed.
        if line.step in reports:
            return False
        reports[line.step] = line.metrics[metric]
        return self._proposals.report(number, len(reports), reports[line.step])

    def record(
        self, number: int, status: EndStatus, run: Run | None, finding: Finding | None = None
    ) -> None:
        """Records the end of a trial.

        Args:
            number: of the trial.
            status: how it has ended; without a finite value it has failed.
            run: of the trial; None if it cannot be read.
            finding: why it has failed.

        Raises:
            RunFailed: sweep-trials-fail.
        """
        value = self._value(number)
        if status == "finished" and value is None:
            problem = f"`{self.header.metric}` was never finite."
            finding = Finding(rule="nonfinite-loss", severity="error", problem=problem)
            status = "failed"
        ended = msgspec.structs.replace(
            self.trials[number],
            at=clock.now_s(),
            status=status,
            value=value,
            reports=tuple(self._reports.pop(number, {}).values()),
            duration_s=sum(split_of(run).values()) or None if run is not None else None,
            share=None,
            finding=finding,
        )
        self._write(self._proposals.tell(ended))
        result.refuse_equal_failures(self.header, self.trials.values())

    def show(
        self,
        number: int,
        status: TrialStatus,
        duration_s: float | None = None,
        share: float | None = None,
    ) -> None:
        """Notes how a trial that has not ended stands; nothing is written."""
        self.trials[number] = msgspec.structs.replace(
            self.trials[number], status=status, value=self._value(number), duration_s=duration_s,
            share=share,
        )  # fmt: skip

    def sweep(self, *, is_final: bool = False) -> Sweep:
        """The sweep as it stands; at the end with the command and the importances."""
        now = result.sweep_of(self._folder, self.header, self.trials.values())
        return result.with_best(now, self._proposals.importances()) if is_final else now

    def _value(self, number: int) -> float | None:
        return result.best_value(self.header, self._reports.get(number, {}).values())

    def _write(self, one: SweepTrial) -> None:
        self._lines.append(one, is_synced=True)
        self.trials[one.trial] = one
