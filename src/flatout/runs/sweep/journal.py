"""What a sweep has on the disk, what Optuna has of it in memory, and how its trials stand."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from flatout.errors import UsageError, nearest
from flatout.runs.sweep import result
from flatout.runs.sweep.proposals import Proposals
from flatout.schema.run_lines import Validated
from flatout.schema.sweep import (
    Sweep,
    SweepHeader,
    SweepTrial,
    TrialAsked,
    TrialEnded,
    TrialLine,
    direction_of,
)
from flatout.system import atomic_files
from flatout.system.store import sweep_folder
from flatout.system.store.sweep_folder import SweepFolder


class SweepJournal:
    """A sweep that is being carried out; its lock must be held.

    header: as it is now. history: all lines of `trials.jsonl`.
    """

    def __init__(self, folder: SweepFolder, header: SweepHeader, parallel: int) -> None:
        self.header = header
        self.history = sweep_folder.read_trials(folder)
        self._folder, self._parallel = folder, parallel
        self._proposals = Proposals(header, self.history, parallel)
        self._rows = {row.trial: row for row in result.rows_of(header, self.history)}
        atomic_files.write_json(folder.header, header)
        self._lines = atomic_files.Lines(folder.trials)

    def close(self) -> None:
        """Closes the file of the trials."""
        self._lines.close()

    def ended(self) -> list[TrialEnded]:
        """The trials that have ended, in that order."""
        return [line for line in self.history if isinstance(line, TrialEnded)]

    def numbers(self) -> Iterator[int]:
        """Trials that have begun and not ended, then new ones."""
        asked = {line.trial for line in self.history if isinstance(line, TrialAsked)}
        yield from sorted(asked - {line.trial for line in self.ended()})
        yield from range(len(asked) + 1, self.header.num_trials + 1)

    def asked(self, number: int) -> TrialAsked:
        """The parameters of a trial; of a new one they are chosen now."""
        for line in self.history:
            if isinstance(line, TrialAsked) and line.trial == number:
                return line
        asked = self._proposals.ask(number)
        self._append(asked)
        return asked

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
            atomic_files.write_json(self._folder.header, self.header)
            self._proposals = Proposals(self.header, self.history, self._parallel)

    def report(self, number: int, reports: dict[int, float | None], line: Validated) -> bool:
        """Reports a validation; gives whether the pruner stops the trial.

        reports: the values of the trial by step, to which this one is added.

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
        # Validations after a checkpoint come again when a run is resumed.
        if line.step in reports:
            return False
        reports[line.step] = line.metrics[metric]
        return self._proposals.report(number, len(reports), reports[line.step])

    def record(self, ended: TrialEnded) -> None:
        """Records the end of a trial."""
        self._append(self._proposals.tell(ended))
        self.show(result.row_of(self.header, self.asked(ended.trial), ended))

    def show(self, row: SweepTrial) -> None:
        """How a trial stands now."""
        self._rows[row.trial] = row

    def sweep(self, *, is_final: bool = False) -> Sweep:
        """The sweep as it stands; at the end with the command and the importances."""
        now = result.sweep_of(self._folder, self.header, self._rows.values())
        return result.with_best(now, self._proposals.importances()) if is_final else now

    def _append(self, line: TrialLine) -> None:
        self._lines.append(line, is_synced=True)
        self.history.append(line)
