"""Runs as a training leaves them, for the pages of `flatout web`, without a training."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec
from starlette.testclient import TestClient

from flatout.doctor.model.diagnosis import Diagnosis, Examined
from flatout.schema.experiment_spec import ExperimentSpec
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Cpu, Host, Machine, Memory
from flatout.schema.run import RunHeader
from flatout.schema.run_lines import Finished, Line, Progress, Started, Validated
from flatout.system.atomic_files import Lines
from flatout.system.store.run_folder import RunFolder, create_run
from flatout.web.application import application
from flatout.web.background_query import machine_health
from flatout.web.gate import AccessGate, GateRules
from flatout.web.page import PageContext
from flatout.web.run_cache import RunCache

CREATED_AT = 1_700_000_000.0
FORM_TOKEN = "form-token"
MACHINE = Machine(
    host=Host(os="linux", distribution="Debian 13"),
    cpu=Cpu(name="A CPU", num_threads=8),
    memory=Memory(total_bytes=16 << 30, available_bytes=12 << 30),
)
FINDING = Finding(
    rule="torch-cpu-only-build", severity="warning", problem="torch cannot use the GPU.",
    because="it is the CPU build", fixes=(Fix(text="flatout setup"),),
)  # fmt: skip


def web_app(
    findings: tuple[Finding, ...] = (FINDING,), runs: RunCache | None = None, **rules: Any
) -> AccessGate:
    """The application, on a machine with these findings. runs: None waits until all are read."""
    known: dict[str, Any] = {
        "names": frozenset({"localhost", "127.0.0.1", "::1"}), "form_token": FORM_TOKEN,
        "port": 8420, **rules,
    }  # fmt: skip
    examined = Examined(machine=MACHINE, diagnosis=Diagnosis(findings=findings))
    health = machine_health(lambda: examined)
    context = PageContext(runs=runs or RunCache(), health=health)
    health.latest()
    return application(context, GateRules(**known))


def web_client(**rules: Any) -> TestClient:
    """A browser of it, without JavaScript."""
    return TestClient(web_app(**rules), base_url="http://127.0.0.1:8420", follow_redirects=False)


def started(**facts: Any) -> Started:
    """A beginning of 100 steps."""
    known = {"num_steps": 100, "num_epochs": 10, "steps_per_epoch": 10, "num_samples": 80, **facts}
    return Started(at=CREATED_AT, step=0, pid=1, num_parameters=5, **known)


def progress(step: int, loss: float | None = 0.5) -> Progress:
    """A line of training."""
    return Progress(
        at=CREATED_AT + step, step=step, epoch=0, loss=loss, samples_per_s=1000.0,
        learning_rate=0.1, memory_bytes=1 << 30, split_s={"forward": 3.0, "backward": 1.0},
    )  # fmt: skip


def validated(step: int, accuracy: float | None, *, is_best: bool = False) -> Validated:
    """A validation."""
    metrics = {"loss": 0.25, "accuracy": accuracy}
    return Validated(at=CREATED_AT + step, step=step, epoch=0, metrics=metrics, is_best=is_best)


def finished(step: int = 100) -> Finished:
    """The end of a run."""
    split = {"forward": 3.0, "backward": 1.0}
    return Finished(
        at=CREATED_AT + step, step=step, train_s=4.0, split_s=split, num_samples_seen=800
    )


def new_run(
    run_id: str, events: Iterable[Line] = (), metrics: Iterable[Line] = (), *,
    python: str = "/bin/python", **spec: Any,
) -> RunFolder:  # fmt: skip
    """A run in the state folder, with these lines."""
    header = RunHeader(
        id=run_id, created_at=CREATED_AT, flatout_version="0.1.0", python=python,
        spec=ExperimentSpec(**{"name": "digits", **spec}),
    )  # fmt: skip
    folder = create_run(header)
    for path, lines in ((folder.events, events), (folder.metrics, metrics)):
        written = Lines(path)
        for line in lines:
            written.append(line)
        written.close()
    return folder


def whole_run(name: str = "digits-0001", accuracy: float = 0.9, **facts: Any) -> RunFolder:
    """A run that has finished."""
    metrics: list[Line] = [progress(step, 1 / step) for step in range(10, 101, 10)]
    metrics.append(validated(100, accuracy, is_best=True))
    return new_run(name, [started(), finished()], metrics, **facts)


def big_metrics(folder: RunFolder, num_lines: int) -> None:
    """A long metrics.jsonl, written quickly; one line of loss is far above the others."""
    line = msgspec.json.encode(progress(0, 1.0)).decode()
    with open(folder.metrics, "w", encoding="utf-8") as file:
        for step in range(num_lines):
            loss = "987.5" if step == num_lines // 3 else f"{1 + step % 7}.5"
            text = line.replace('"step":0', f'"step":{step}', 1)
            file.write(text.replace('"loss":1.0', f'"loss":{loss}', 1) + "\n")
