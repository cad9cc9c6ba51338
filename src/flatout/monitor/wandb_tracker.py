"""A run in Weights & Biases: at its server, or offline in the run's folder, for `wandb sync`."""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from flatout.monitor.tracker import Arrived, TrackedRow, TrackedRun
from flatout.schema.run import Status

OFFLINE = "offline"
# The column that charts have on their x axis.
_STEP = "step"


class WandbTracker:
    """See `tracker.py: Tracker`.

    Offline nothing can be continued, so that it is written again as a whole. Syncing it replaces
    what the server has of the run.

    Args:
        where: `offline`, PROJECT, ENTITY/PROJECT, or both after the address of a server.
    """

    is_confirmed = False

    def __init__(self, where: str | None) -> None:
        self._wandb = importlib.import_module("wandb")
        self._where = where or ""
        self._run: Any = None
        # Read from the server only where it is in doubt.
        self._arrived: dict[str, Arrived] | None = None
        self.url: str | None = None

    def open(self, run: TrackedRun) -> bool:
        """Creates the run, or continues it; returns whether it has nothing of it yet."""
        server, entity, project = _place(self._where)
        is_offline = self._where == OFFLINE
        if is_offline:
            shutil.rmtree(run.folder / "wandb", ignore_errors=True)
        run.folder.mkdir(exist_ok=True)
        recipe = {f"recipe.{name}": value for name, value in run.recipe.items()}
        self._run = self._wandb.init(
            mode="offline" if is_offline else "online",
            entity=entity,
            project=project or run.experiment,
            id=hashlib.sha256(run.key.encode()).hexdigest()[:16],
            name=run.id,
            dir=str(run.folder),
            resume=None if is_offline else "allow",
            settings=self._wandb.Settings(**server) if server else None,
        )
        self._run.config.update(run.parameters | recipe, allow_val_change=True)
        self._run.define_metric("*", step_metric=_STEP)
        self.url = None if is_offline else self._run.url
        return is_offline or not self._run.resumed

    def last(self, name: str) -> Arrived:
        """What the server has of a value."""
        if self._arrived is None:
            self._arrived = {}
            server, _, _ = _place(self._where)
            key = server.pop("api_key", None)
            run = self._wandb.Api(server, api_key=key).run(self._run.path)
            for scanned in run.scan_history():
                # Some versions have None where a row has no such value.
                row = {one: value for one, value in scanned.items() if value is not None}
                step, at_ms = row.get(_STEP, -1), int(row.get("_timestamp", 0) * 1000)
                for one in row:
                    before = self._arrived.get(one, Arrived())
                    self._arrived[one] = Arrived(
                        step=max(before.step, step), at_ms=max(before.at_ms, at_ms)
                    )
        return self._arrived.get(name, Arrived())

    def send(self, rows: Sequence[TrackedRow]) -> None:
        """Adds rows; they are written to a file, and on their way when this returns."""
        for row in rows:
            values = {
                name: self._wandb.Image(str(value)) if isinstance(value, Path) else value
                for name, value in row.values.items()
            }
            self._run.log({_STEP: row.step, "_timestamp": row.at, **values})

    def end(self, status: Status, at: float, files: dict[str, tuple[Path, ...]]) -> None:
        """Adds files, and waits until all has arrived."""
        for paths in files.values():
            for path in paths:
                self._run.save(str(path), base_path=str(path.parent), policy="now")
        self._run.finish(exit_code=0 if status in ("finished", "stopped") else 1)
        self._run = None

    def close(self) -> None:
        """Gives up, after a failure."""
        if self._run is not None:
            # Nothing of it is of use any more.
            with contextlib.suppress(Exception):
                self._run.finish(exit_code=1)
            self._run = None


def _place(where: str) -> tuple[dict[str, str], str | None, str | None]:
    """The settings of a server, the entity and the project; None where it is not said."""
    server: dict[str, str] = {}
    if where == OFFLINE:
        return server, None, None
    if "://" in where:
        parts = urlsplit(where)
        server["base_url"] = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}"
        if parts.password:
            server["api_key"] = parts.password
        where = parts.path.strip("/")
    entity, _, project = where.rpartition("/")
    return server, entity or None, project or None
