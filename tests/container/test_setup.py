"""install.sh and `flatout setup` as a person runs them, on fresh machines that lack something."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from containers import Docker, Limits
from progress import Problem
from support.busy_machine import wait_until
from support.fake_index import write_wheel
from support.setup_guest import PLAIN, WITH_VENV, Guest, add_torch, flatout_wheel, make_house

ROOT = Path(__file__).resolve().parents[2]
SETUP = ("setup", "jax", "--cpu", "--yes")
LEFT = ".local/share/flatout"


@pytest.fixture(scope="module")
def house() -> Path:
    """What flatout and its setup need, downloaded once."""
    try:
        return make_house()
    except Problem as problem:
        pytest.skip(f"needs a package index: {problem.problem} {problem.because}")


@pytest.fixture(scope="module")
def plain(docker: Docker, base_image: str, house: Path) -> str:
    """Debian with Python, without python3-venv."""
    return docker.build(PLAIN.format(base=base_image), is_kept=True)


@pytest.fixture(scope="module")
def image(docker: Docker, base_image: str, house: Path) -> str:
    """Debian with Python and python3-venv."""
    return docker.build(WITH_VENV.format(base=base_image), is_kept=True)


@pytest.fixture(scope="module")
def ready(docker: Docker, image: str) -> str:
    """The same, and a person has flatout there."""
    guest = Guest(docker, image, "person")
    done = guest.install()
    assert done.returncode == 0, done.stderr
    made = guest.container.as_image()
    guest.remove()
    return made


def rule_of(done: subprocess.CompletedProcess[str]) -> str:
    assert "Traceback" not in done.stderr, done.stderr
    return done.stderr.rpartition("  see: ")[2].split()[-1]


@pytest.mark.parametrize("user", ["root", "person"])
def test_setup_from_install_to_removal(docker: Docker, image: str, user: str) -> None:
    guest = Guest(docker, image, user)
    before = guest.run("find", guest.home).stdout
    done = guest.install()
    assert done.returncode == 0, done.stderr
    # As in the next shell, which has read its profile.
    made = guest.run("bash", "-ic", f"flatout {' '.join(SETUP)}")
    assert made.returncode == 0, made.stderr
    assert "proved      3 training steps on the CPU" in made.stdout
    assert guest.faults("jax") == []
    again = guest.ask(*SETUP)
    assert again.returncode == 0 and "is there, whole" in again.stdout
    gone = guest.ask("self", "remove", "--yes")
    assert gone.returncode == 0, gone.stderr
    left = set(guest.run("find", guest.home).stdout.split()) - set(before.split())
    assert left <= {f"{guest.home}/{name}" for name in (
        ".local", ".local/bin", ".local/share", ".cache", ".bash_history")}  # fmt: skip
    assert guest.run("grep", "-c", "flatout", f"{guest.home}/.bashrc").stdout == "0\n"
    guest.remove()


def test_setup_when_python_cannot_make_environments(docker: Docker, plain: str) -> None:
    guest = Guest(docker, plain, "person")
    alone = guest.install()
    assert alone.returncode == 1 and "apt install python3-venv" in alone.stderr
    assert guest.names(LEFT) == {"app"} and "lock" not in guest.names(f"{LEFT}/app")
    # A mirror of uv, as a company has one; and neither curl nor wget.
    more = {"FLATOUT_UV_MIRROR": "file:///house/uv"}
    done = guest.install(script="/house/install-uv.sh", **more)
    assert done.returncode == 0, done.stderr
    made = guest.ask(*SETUP)
    assert made.returncode == 0, made.stderr
    assert "with uv" in made.stdout and guest.faults("jax") == []
    guest.remove()


def test_setup_when_there_is_little_room(docker: Docker, image: str) -> None:
    guest = Guest(docker, image, "person", limits=Limits(disk={"/home/person": "200m"}))
    done = guest.install()
    assert done.returncode == 0, done.stderr
    refused = guest.ask(*SETUP)
    assert (refused.returncode, rule_of(refused)) == (1, "disk-full")
    assert guest.faults() == []
    elsewhere = {"FLATOUT_ENVIRONMENTS": "/var/tmp/made", "FLATOUT_CACHE": "/var/tmp/cache"}
    made = guest.run(guest.flatout, *SETUP, **elsewhere)
    assert made.returncode == 0, made.stderr
    guest.remove()


def test_install_when_there_is_no_room(docker: Docker, image: str) -> None:
    guest = Guest(docker, image, "person", limits=Limits(disk={"/home/person": "30m"}))
    done = guest.install()
    assert done.returncode == 1 and "No space left on device" in done.stderr
    assert not {one for one in guest.names(f"{LEFT}/app") if one.startswith("environment-")}
    assert guest.names(".local/bin") == set()
    guest.remove()


def test_setup_when_the_disk_fills_up(docker: Docker, ready: str) -> None:
    limits = Limits(disk={"/var/tmp/made": "230m"})
    guest = Guest(docker, ready, "person", limits=limits)
    place = {"FLATOUT_ENVIRONMENTS": "/var/tmp/made"}
    process = guest.start(guest.flatout, *SETUP, **place)
    # Somebody else takes all that is left, as soon as the folder is there.
    guest.run("sh", "-c", "while [ ! -d /var/tmp/made/jax ]; do sleep 0.01; done; "
              "cat /dev/zero >/var/tmp/made/other 2>/dev/null")  # fmt: skip
    said = process.communicate(timeout=120)[1]
    assert process.returncode == 1 and "disk-full" in said, said
    assert guest.run("ls", "/var/tmp/made").stdout == "other\n"
    guest.run("rm", "/var/tmp/made/other")
    again = guest.run(guest.flatout, *SETUP, **place)
    assert again.returncode == 0, again.stderr
    guest.remove()


@pytest.fixture
def slow_guest(docker: Docker, ready: str) -> Iterator[tuple[Guest, str]]:
    """A person whose index is on another machine, behind a slow line; and that line's name."""
    network = docker.network()
    server = Guest(docker, ready, limits=Limits(network=network))
    serving = ("python3", "/house/slow_index.py", "/house/simple", "80", "400000", "/asked")
    server.start(*serving)
    index = f"http://{server.container.name}"
    guest = Guest(docker, ready, "person", limits=Limits(network=network), index=index)
    ask = f"import urllib.request; urllib.request.urlopen('{index}/jax/')"
    wait_until(lambda: guest.run("python3", "-c", ask).returncode == 0)
    yield guest, network
    guest.remove()
    server.remove()


def test_setup_when_the_network_is_cut_and_returns(slow_guest: tuple[Guest, str]) -> None:
    guest, network = slow_guest
    words = (*SETUP, "--manager", "pip")
    process = guest.start(guest.flatout, *words)
    part = f"{guest.home}/.cache/flatout/wheels"
    find = f"find {part} -name '*.part' -size +500k | grep ."
    wait_until(lambda: guest.run("sh", "-c", find).returncode == 0)
    guest.container.disconnect(network)
    said = process.communicate(timeout=180)[1]
    assert process.returncode == 1 and "explain download-failed" in said, said
    assert guest.faults() == []
    guest.container.connect(network)
    began = time.monotonic()
    again = guest.ask(*words)
    assert again.returncode == 0, again.stderr
    assert guest.faults("jax") == []
    assert time.monotonic() - began < 60


def test_setup_of_torch_itself(docker: Docker, ready: str) -> None:
    try:
        add_torch()
    except Problem as problem:
        pytest.skip(f"needs torch from a package index: {problem.because}")
    guest = Guest(docker, ready, "person")
    done = guest.ask("setup", "torch", "--cpu", "--yes")
    assert done.returncode == 0, done.stderr
    assert "cannot be reached" in done.stdout and "within" in done.stdout
    assert guest.faults("torch") == []
    trained = guest.ask("train", "digits", "--env", "torch", "--epochs", "1")
    assert trained.returncode == 0, trained.stderr
    guest.remove()


@pytest.mark.parametrize("is_power_cut", [False, True])
def test_setup_when_it_is_killed(docker: Docker, ready: str, is_power_cut: bool) -> None:
    guest = Guest(docker, ready, "person")
    dice = random.Random(int(is_power_cut))
    for _ in range(3):
        process = guest.start(guest.flatout, *SETUP)
        time.sleep(dice.uniform(0.3, 2.5))
        if is_power_cut:
            guest.container.kill()
            guest.container.boot()
        else:
            guest.kill()
        process.communicate(timeout=60)
        again = guest.ask(*SETUP)
        assert again.returncode == 0, again.stderr
        assert guest.faults("jax") == []
        assert guest.ask("setup", "--remove", "jax", "--yes").returncode == 0
    guest.remove()


def test_install_when_the_power_goes(docker: Docker, image: str) -> None:
    guest = Guest(docker, image, "person")
    for moment_s in (0.3, 3.0):
        process = guest.start("sh", "/house/install.sh", "--yes", "--from", flatout_wheel())
        time.sleep(moment_s)
        guest.container.kill()
        guest.container.boot()
        process.communicate(timeout=60)
        # Numbers are given anew: somebody else has that of the one that has died.
        sleepers = [guest.start("sleep", "600") for _ in range(12)]
    done = guest.install()
    assert done.returncode == 0, done.stderr
    assert guest.faults() == []
    guest.remove()
    assert all(one.wait(30) != 0 for one in sleepers)


# A driver of a few lines of C.

SMI = """#!/bin/sh
case "$*" in
  *name,memory*) echo "NVIDIA GeForce RTX 3090, 24576, 23552, 00000000:05:00.0, GPU-1, 580.95.05, 8.6" ;;
  *--query-gpu*) echo "00000000:05:00.0, [N/A], [N/A], Enabled, Disabled" ;;
esac
"""  # noqa: E501 - as nvidia-smi prints it


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with NVML, libcuda and nvidia-smi of one card."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("needs a C compiler called cc: it makes a driver for the test")
    folder = tmp_path_factory.mktemp("driver")
    for source, library in (("nvml.c", "libnvidia-ml.so.1"), ("cuda.c", "libcuda.so.1")):
        path = ROOT / "tests" / "cases" / "driver" / source
        argv = [compiler, "-shared", "-fPIC", "-o", str(folder / library), str(path)]
        subprocess.run(argv, check=True, timeout=60)
    (folder / "nvidia-smi").write_text(SMI, encoding="utf-8")
    (folder / "nvidia-smi").chmod(0o755)
    return folder


PLACES = {
    "linux": {"lib*": "/usr/lib/", "nvidia-smi": "/usr/bin/"},
    "nvidia-smi alone": {"nvidia-smi": "/usr/bin/"},
    "wsl": {"*": "/usr/lib/wsl/lib/"},
}


@pytest.mark.parametrize("place", PLACES)
def test_setup_plans_for_the_driver_that_is_there(
    docker: Docker, ready: str, house: Path, driver: Path, place: str
) -> None:
    guest = Guest(docker, ready, "person")
    for pattern, target in PLACES[place].items():
        guest.container.run("mkdir", "-p", target)
        for file in driver.glob(pattern):
            guest.container.put(file, target)
    reported = guest.ask("doctor", "--json")
    machine = json.loads(reported.stdout)["machine"]
    assert (machine["driver"], machine["gpus"][0]["compute_capability"]) == ("580.95.05", "8.6")
    described = ("--for", "GeForce RTX 3090", "--driver", "580.95.05", "--python", "3.11")
    asked = guest.ask("setup", "torch", *described, "--offline", "--json")
    choice = json.loads(asked.stdout)["choice"]
    assert choice["cuda"].startswith("cu13")
    # What a plan names must be there to be had.
    label = f"{choice['version']}+{choice['cuda']}"
    write_wheel(house / "simple", "torch", label, {"torch/__init__.py": ""})
    planned = guest.ask("setup", "torch", "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    (plan,) = json.loads(planned.stdout)["plans"]
    assert (plan["choice"]["version"], plan["choice"]["cuda"]) == (label, choice["cuda"])
    assert any("NVIDIA GeForce RTX 3090" in reason for reason in plan["why"]), plan["why"]
    assert guest.names(f"{LEFT}") == {"app"}
    guest.remove()
