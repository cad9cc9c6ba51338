"""A real Prometheus scrapes a monitor during a training, and answers dashboards' queries.

    python campaigns/prometheus_scrape.py [--minutes 10]

Needs `prometheus` and `promtool` (Debian: apt install prometheus). Counts missed scrapes, has
`promtool check metrics` look at the text once a minute, and asks for all that flatout's dashboard
asks for. Then a demo with --dcgm-names, and all queries of Grafana's dashboard 12239.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from support.dated import measurement, read_machine, write_result

from flatout.monitor.grafana_dashboard import PANELS

RESULTS = Path(__file__).with_name("results")
SRC = Path(__file__).resolve().parents[1] / "src"
EVERY_S = 2

# The queries of dashboard 12239, whose variables stand for everything here.
# Sources: NVIDIA/dcgm-exporter grafana/dcgm-exporter-dashboard.json (gnetId 12239, by Hostname),
# and the revision on grafana.com/grafana/dashboards/12239, which selects by instance.
_ALL = '{Hostname=~".*",gpu=~".*"}'
_BY_INSTANCE = '{instance=~".*",gpu=~".*"}'
DASHBOARD_12239 = (
    "DCGM_FI_DEV_FB_FREE",
    f"max(DCGM_FI_DEV_GPU_TEMP{_ALL}) by (Hostname, gpu, uuid)",
    f"avg(DCGM_FI_DEV_GPU_TEMP{_ALL})",
    f"max(DCGM_FI_DEV_POWER_USAGE{_ALL}) by (Hostname, gpu, uuid)",
    f"sum(max(DCGM_FI_DEV_POWER_USAGE{_ALL}) by (gpu))",
    f"max(DCGM_FI_DEV_SM_CLOCK{_ALL} * 1000000) by (Hostname, UUID, gpu)",
    f"max(DCGM_FI_PROF_GR_ENGINE_ACTIVE{_ALL}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    f"max(DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{_ALL}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    f"max(DCGM_FI_DEV_FB_USED{_ALL}) by (Hostname, gpu, GPU_I_ID, GPU_I_PROFILE)",
    f"DCGM_FI_DEV_GPU_TEMP{_BY_INSTANCE}",
    f"avg(DCGM_FI_DEV_GPU_TEMP{_BY_INSTANCE})",
    f"DCGM_FI_DEV_POWER_USAGE{_BY_INSTANCE}",
    f"sum(DCGM_FI_DEV_POWER_USAGE{_BY_INSTANCE})",
    f"DCGM_FI_DEV_SM_CLOCK{_BY_INSTANCE} * 1000000",
    f"DCGM_FI_DEV_GPU_UTIL{_BY_INSTANCE}",
    f"DCGM_FI_PROF_PIPE_TENSOR_ACTIVE{_BY_INSTANCE}",
    f"DCGM_FI_DEV_FB_USED{_BY_INSTANCE}",
)


def free_port() -> int:
    """A port that no program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@contextlib.contextmanager
def running(command: Sequence[str], log: Path, environment: dict[str, str]) -> Iterator[None]:
    """A program, ended by SIGTERM afterwards."""
    with open(log, "wb") as file:
        process = subprocess.Popen(command, env=environment, stdout=file, stderr=file)
        try:
            yield
            if process.poll() is not None:
                raise RuntimeError(f"{command} has ended: {log.read_text()}")
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@contextlib.contextmanager
def prometheus(folder: Path, target: int) -> Iterator[int]:
    """A Prometheus that scrapes that port; gives its own."""
    port = free_port()
    (folder / "prometheus.yml").write_text(
        f"global:\n  scrape_interval: {EVERY_S}s\nscrape_configs:\n  - job_name: flatout\n"
        f'    static_configs:\n      - targets: ["127.0.0.1:{target}"]\n'
    )
    command = [
        "prometheus", f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}", f"--web.listen-address=127.0.0.1:{port}",
    ]  # fmt: skip
    with running(command, folder / "prometheus.log", dict(os.environ)):
        wait_until_ready(port)
        yield port


def wait_until_ready(port: int) -> None:
    """Waits for Prometheus."""
    until_s = time.monotonic() + 60
    while time.monotonic() < until_s:
        with contextlib.suppress(OSError):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/-/ready", timeout=5).close()
            return
        time.sleep(0.2)
    raise RuntimeError("Prometheus does not start")


def ask(port: int, query: str) -> list[Any]:
    """The answer to a query of this moment."""
    words = urllib.parse.urlencode({"query": query})
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/api/v1/query?{words}", timeout=30) as got:
        answer = json.load(got)
    if answer["status"] != "success":
        raise RuntimeError(f"{query}: {answer}")
    return list(answer["data"]["result"])


def unanswered(port: int, queries: Sequence[str], limit_s: float = 60.0) -> list[str]:
    """The queries without an answer after a while."""
    until_s = time.monotonic() + limit_s
    left = list(queries)
    while left and time.monotonic() < until_s:
        left = [query for query in left if not ask(port, query)]
        time.sleep(0.5)
    return left


def promtool_output(port: int) -> str:
    """What promtool says about the text of an exporter; empty if it is clean."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read()
    done = subprocess.run(
        ["promtool", "check", "metrics"], input=text, capture_output=True, check=False
    )
    printed = (done.stdout + done.stderr).decode()
    return printed if done.returncode == 0 else f"exit code {done.returncode}: {printed}"


def dashboard_queries() -> list[str]:
    """What flatout's dashboard asks for, of all computers; of this one only what it has."""
    queries = [query for panel in PANELS for query, _ in panel.queries]
    queries = [re.sub(r'"\$\w+"', '".*"', query) for query in queries]
    # There is no GPU here, and no alarm while all is well.
    return [query for query in queries if "_gpu_" not in query and "flatout_alarms" not in query]


def scrape_training(folder: Path, minutes: float) -> tuple[dict[str, Any], list[str]]:
    """Scrapes a monitor while a training runs; gives the counts, and what went wrong."""
    state, port = folder / "state", free_port()
    environment = {**os.environ, "FLATOUT_STATE": str(state), "PYTHONPATH": str(SRC)}
    flatout = [sys.executable, "-m", "flatout"]
    train = [
        *flatout,
        "train",
        str(Path(__file__).with_name("faulty_training.py")),
        "--tune",
        "off",
    ]
    monitor = [*flatout, "monitor", "--prometheus", f":{port}"]
    problems: list[str] = []
    with (
        running(monitor, folder / "monitor.log", environment),
        running(train, folder / "train.log", environment),
        prometheus(folder, port) as asked,
    ):
        missing = unanswered(asked, ["flatout_run_step", *dashboard_queries()], 120)
        problems += [f"no answer: {query}" for query in missing]
        began_s, num_checks = time.monotonic(), 0
        while time.monotonic() - began_s < minutes * 60:
            said = promtool_output(port)
            num_checks += 1
            if said:
                problems.append(f"promtool: {said}")
            time.sleep(min(60.0, minutes * 60 / 2))
        window = f"[{int(minutes * 60)}s]"
        longest = f"max_over_time(scrape_duration_seconds{window})"
        counts = {
            "scrapes": ask(asked, f"count_over_time(up{window})")[0]["value"][1],
            "missed": ask(asked, f"sum_over_time((1 - up){window[:-1]}:{EVERY_S}s])"),
            "slowest_s": ask(asked, longest)[0]["value"][1],
            "steps": ask(asked, f"increase(flatout_run_step{window})"),
            "samples": ask(asked, "flatout_monitor_samples_total")[0]["value"][1],
        }  # fmt: skip
    missed = float(counts["missed"][0]["value"][1])
    if missed:
        problems.append(f"{missed:.0f} scrapes failed")
    return {
        "minutes": minutes, "scrapes": int(counts["scrapes"]), "missed": missed,
        "slowest_s": float(counts["slowest_s"]), "promtool_checks": num_checks,
        "samples": float(counts["samples"]), "steps": float(counts["steps"][0]["value"][1]),
        "queries": len(dashboard_queries()) + 1,
    }, problems  # fmt: skip


def scrape_demo(folder: Path) -> tuple[dict[str, Any], list[str]]:
    """Asks a demo with dcgm-exporter's names for all of dashboard 12239."""
    port = free_port()
    environment = {**os.environ, "FLATOUT_STATE": str(folder / "state"), "PYTHONPATH": str(SRC)}
    command = [
        sys.executable, "-m", "flatout", "monitor", "--demo", "--dcgm-names", "-i", "1",
        "--prometheus", f":{port}",
    ]  # fmt: skip
    with (
        running(command, folder / "demo.log", environment),
        prometheus(folder, port) as asked,
    ):
        missing = unanswered(asked, DASHBOARD_12239)
    problems = [f"12239, no answer: {query}" for query in missing]
    return {"queries": len(DASHBOARD_12239), "unanswered": missing}, problems


def main() -> int:
    """Runs both; 1 if a scrape failed, promtool complained or a query had no answer."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0, help="of training")
    parser.add_argument("--out", type=Path, default=RESULTS, help="output folder")
    options = parser.parse_args()
    if not shutil.which("prometheus") or not shutil.which("promtool"):
        print("needs prometheus and promtool: apt install prometheus")
        return 2
    details, problems = {}, []
    for name, work in (
        ("demo", scrape_demo),
        ("training", lambda folder: scrape_training(folder, options.minutes)),
    ):
        with tempfile.TemporaryDirectory() as text:
            details[name], found = work(Path(text))
        print(name, details[name], *found, sep="\n  ", flush=True)
        problems += found
    details["problems"] = problems
    slowest = (details["training"]["slowest_s"],)
    measured = [measurement("slowest scrape", "s", slowest, details["training"])]
    print(write_result("prometheus-scrape", read_machine(), measured, details, options.out))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
