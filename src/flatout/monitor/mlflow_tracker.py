"""A run in MLflow: a tracking server, a database, or a folder of files."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from flatout.monitor.tracker import Arrived, TrackedRow, TrackedRun
from flatout.schema.addresses import without_secrets
from flatout.schema.run import Status
from flatout.schema.suggested_command import typed_value

# Of a request. Source: MLflow, "REST API", section "Log Batch", Request Limits.
_MOST_METRICS = 1000
_MOST_PARAMETERS = 100
_LONGEST_VALUE = 6000
# What it calls how a run has ended.
_STATUSES = {"finished": "FINISHED", "failed": "FAILED"}
_RUN_TAG = "flatout.run"


class MlflowTracker:
    """See `tracker.py: Tracker`.

    Args:
        where: the tracking URI.
    """

    is_confirmed = True

    def __init__(self, where: str) -> None:
        self._entities = importlib.import_module("mlflow.entities")
        tracking = importlib.import_module("mlflow.tracking")
        self._client = tracking.MlflowClient(tracking_uri=where)
        self._where = where
        self._run_id = ""
        self.url: str | None = None

    def open(self, run: TrackedRun) -> bool:
        """Creates the run, or continues it; returns whether it has nothing of it yet."""
        experiment = self._client.get_experiment_by_name(run.experiment)
        experiment_id = (
            experiment.experiment_id
            if experiment is not None
            else self._client.create_experiment(run.experiment)
        )
        known = self._client.search_runs(
            [experiment_id], f"tags.`{_RUN_TAG}` = '{run.key}'", max_results=1
        )
        if known:
            self._run_id = known[0].info.run_id
            self._client.update_run(self._run_id, status="RUNNING")
        else:
            created = self._client.create_run(
                experiment_id, start_time=_ms(run.created_at), run_name=run.id,
                tags={_RUN_TAG: run.key},
            )  # fmt: skip
            self._run_id = created.info.run_id
        if self._where.startswith("http"):
            place = f"/#/experiments/{experiment_id}/runs/{self._run_id}"
            self.url = without_secrets(self._where).rstrip("/") + place
        self._set_parameters(run)
        return not known

    def _set_parameters(self, run: TrackedRun) -> None:
        """Sets parameters once; a field of the recipe that has changed since also has a tag."""
        recipe = {f"recipe.{name}": value for name, value in run.recipe.items()}
        wanted = {
            _name(name): typed_value(value)[:_LONGEST_VALUE]
            for name, value in (run.parameters | recipe).items()
        }
        data = self._client.get_run(self._run_id).data
        new = [
            self._entities.Param(name, value)
            for name, value in wanted.items()
            if name not in data.params
        ]
        changed = [
            self._entities.RunTag(name, value)
            for name, value in wanted.items()
            if data.tags.get(name, data.params.get(name, value)) != value
        ]
        for part in _parts(new, _MOST_PARAMETERS):
            self._client.log_batch(self._run_id, params=part)
        for part in _parts(changed, _MOST_PARAMETERS):
            self._client.log_batch(self._run_id, tags=part)

    def last(self, name: str) -> Arrived:
        """What it has of a value; of files nothing, since they only replace each other."""
        history = self._client.get_metric_history(self._run_id, _name(name))
        return Arrived(
            step=max((metric.step for metric in history), default=-1),
            at_ms=max((metric.timestamp for metric in history), default=-1),
        )

    def send(self, rows: Sequence[TrackedRow]) -> None:
        """Adds rows: numbers as metrics; texts and pictures as files, in a folder of the name."""
        metrics, files = [], []
        for row in rows:
            for name, value in row.values.items():
                if isinstance(value, str | Path):
                    files.append((_name(name), row.step, value))
                else:
                    metric = self._entities.Metric(_name(name), value, row.at_ms, row.step)
                    metrics.append(metric)
        for part in _parts(metrics, _MOST_METRICS):
            self._client.log_batch(self._run_id, metrics=part)
        for folder, step, value in files:
            if isinstance(value, str):
                self._client.log_text(self._run_id, value, f"{folder}/{step:06d}.txt")
            else:
                self._client.log_artifact(self._run_id, str(value), folder)

    def end(self, status: Status, at: float, files: dict[str, tuple[Path, ...]]) -> None:
        """Adds files, which take the place of those of the same name, and sets the status."""
        for folder, paths in files.items():
            for path in paths:
                self._client.log_artifact(self._run_id, str(path), folder or None)
        named = _STATUSES.get(status, "KILLED")
        self._client.set_terminated(self._run_id, named, end_time=_ms(at))

    def close(self) -> None:
        """Gives up: nothing is held."""


def _name(name: str) -> str:
    """A name that MLflow takes. A folder of files cannot have `train/loss` and `train/loss/aux`."""
    group, slash, rest = name.partition("/")
    plain = f"{group}{slash}{rest.replace('/', '.')}"
    return re.sub(r"[^\w.\- /]", "_", plain)


def _ms(at: float) -> int:
    return int(at * 1000)


def _parts(items: Sequence[Any], size: int) -> Iterator[Iterable[Any]]:
    for start in range(0, len(items), size):
        yield items[start : start + size]
