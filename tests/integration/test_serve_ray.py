"""`flatout serve --on ray`: on a Ray of its own, and two servers next to each other on one Ray."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from typing import Any

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.served_runs import Place, Served, servers, trained_place

from flatout.serve.ray_serve import gpu_share

pytest.importorskip("uvicorn")
pytest.importorskip("swagger_ui_bundle")
if importlib.util.find_spec("ray") is None:
    pytest.skip("needs Ray: pip install 'ray[serve]'", allow_module_level=True)

# A Ray that was not started by `ray start` keeps its token for itself.
OPEN = {"RAY_AUTH_MODE": "disabled"}
# A Ray that ends with its standard input.
HEAD = """
import sys, ray
ray.init(address="local", num_cpus=4, include_dashboard=False)
print("address", ray.get_runtime_context().gcs_address, flush=True)
sys.stdin.read()
"""
# As many actors as it is told share one GPU; it need not exist.
SHARED_GPU = """
import sys, ray
ray.init(address="local", num_cpus=1, num_gpus=1, include_dashboard=False)

@ray.remote(num_cpus=0)
class Replica:
    def ready(self):
        return True

count, share = int(sys.argv[1]), float(sys.argv[2])
replicas = [Replica.options(num_gpus=share).remote() for _ in range(count)]
done, late = ray.wait([one.ready.remote() for one in replicas], num_returns=count, timeout=60)
print("ready", len(done))
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return trained_place(tmp_path_factory.mktemp("serve"))


@pytest.fixture
def serve(place: Place) -> Iterator[Any]:
    with servers(place) as start:
        yield start


@pytest.fixture
def ray_head(place: Place) -> Iterator[str]:
    """The address of a Ray that others join."""
    process = subprocess.Popen(
        [sys.executable, "-c", HEAD], env={**place.env, **OPEN}, text=True, stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )  # fmt: skip
    assert process.stdin is not None and process.stdout is not None
    for line in process.stdout:
        if line.startswith("address "):
            yield line.split()[1]
            break
    process.stdin.close()
    process.wait(180)


def counted(served: Served, token: str) -> dict[tuple[str, str], float]:
    """What each process has answered, and every other counter, by its labels."""
    request = urllib.request.Request(
        f"{served.url}/metrics", headers={"authorization": f"Bearer {token}"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        text = response.read().decode()
    return {
        (sample.name, str(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        if family.type == "counter"
        for sample in family.samples
    }


def test_ray_serve_runs_the_same_application(serve: Any) -> None:
    served = serve("first", "--on", "ray", "--token", "s3cret", "--replicas", "2")
    assert served.ready["model"]["name"] == "first" and served.ready["num_replicas"] == 2
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/first-[0-9a-f]{6}", served.url)
    assert served.predict()[0] == 401
    token = {"authorization": "Bearer s3cret"}
    assert served.predict(host="evil.example", **token)[0] == 421
    before: dict[tuple[str, str], float] = {}
    processes: set[str] = set()
    for _ in range(20):
        status, document = served.predict(**token)
        assert status == 200 and document["model"] == "first"
        now = counted(served, "s3cret")
        # Whichever replica has answered: none is missing, and nothing has fallen.
        assert all(now.get(key, -1.0) >= value for key, value in before.items())
        before = now
        processes = {key[1] for key in now if key[0] == "flatout_serve_answers_total"}
    assert len(processes) == 2
    assert served.predict({"input": [1, 2]}, **token)[0] == 422
    replicas = psutil.Process(served.process.pid).children(recursive=True)
    assert served.stop() == 0
    assert served.wait_for("stopping")["num_open"] is None
    _, alive = psutil.wait_procs(replicas, timeout=120)
    assert not alive


def test_two_servers_live_next_to_each_other_on_one_ray(place: Place, ray_head: str) -> None:
    joined = Place(place.folder, RAY_ADDRESS=ray_head, **OPEN)
    with servers(joined) as start:
        first = start("first", "--on", "ray")
        second = start("second", "--on", "ray", "--token", "s3cret")
        # Ray has one port for all.
        assert first.url.rpartition("/")[0] == second.url.rpartition("/")[0]
        assert first.predict()[1]["model"] == "first"
        assert second.predict()[0] == 401
        token = {"authorization": "Bearer s3cret"}
        assert second.predict(**token)[1]["model"] == "second"
        assert first.stop() == 0
        assert second.predict(**token)[1]["model"] == "second"
        assert second.stop() == 0


def test_ray_starts_all_replicas_that_share_a_gpu(place: Place) -> None:
    arguments = [sys.executable, "-c", SHARED_GPU, "6", str(gpu_share(6, 1))]
    done = subprocess.run(
        arguments, env={**place.env, **OPEN}, text=True, stdout=subprocess.PIPE, timeout=180,
        check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["ready", "6"]


def test_ray_that_does_not_answer_is_refused(place: Place) -> None:
    lonely = Place(place.folder, RAY_ADDRESS="127.0.0.1:9")
    done = lonely.run("serve", "first", "--on", "ray", "--port", "0")
    assert done.returncode == 1 and "scheduler-not-reachable" in done.stderr
    assert "Traceback" not in done.stderr
