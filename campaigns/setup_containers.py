"""Runs install.sh and `flatout setup` on fresh machines that lack something.

Each machine is a container with a small Debian and Python. The index is a folder, so the times are
those of flatout and the disk, not of the network.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from containers import Docker, Limits, find_docker
from support.dated import machine_text, measurement, read_machine, write_result
from support.setup_guest import PLAIN, WITH_VENV, Guest, add_torch, make_house

RESULTS = Path(__file__).with_name("results")
SETUP = ("setup", "jax", "--cpu", "--yes")
REMOVE = ("setup", "--remove", "jax", "--yes")
_WAIT_S = 120.0


class Machines:
    """Fresh machines, with or without flatout."""

    def __init__(self, docker: Docker) -> None:
        self.docker = docker
        base = docker.base_image()
        self.plain = docker.build(PLAIN.format(base=base), is_kept=True)
        self.image = docker.build(WITH_VENV.format(base=base), is_kept=True)
        guest = Guest(docker, self.image, "person")
        must(guest.install())
        self.ready = guest.container.as_image()
        guest.remove()

    def person(self, limits: Limits | None = None, **more: str) -> Guest:
        """A user who has installed flatout."""
        return Guest(self.docker, self.ready, "person", limits=limits, **more)


def must(done: subprocess.CompletedProcess[str]) -> None:
    """Ends the campaign if a prerequisite fails."""
    if done.returncode != 0:
        sys.exit(f"{done.args}: {done.stderr}")


def reported(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What is wrong with a command that should have succeeded."""
    if done.returncode == 0 and "Traceback" not in done.stderr:
        return []
    return [f"exited with {done.returncode}: {done.stderr[-300:]}"]


def refused(done: subprocess.CompletedProcess[str], rule: str) -> list[str]:
    """What is wrong with a command that should have failed with that rule."""
    is_so = done.returncode == 1 and done.stderr.rstrip().endswith(f"explain {rule}")
    return [] if is_so else [f"not {rule}: exited with {done.returncode}: {done.stderr[-300:]}"]


def from_install_to_removal(machines: Machines, user: str) -> list[str]:
    """Install flatout, use it, remove it."""
    guest = Guest(machines.docker, machines.image, user)
    before = guest.run("find", guest.home).stdout
    found = reported(guest.install()) + reported(guest.ask(*SETUP)) + guest.faults("jax")
    found += reported(guest.ask(*SETUP)) + reported(guest.ask("self", "remove", "--yes"))
    left = set(guest.run("find", guest.home).stdout.split()) - set(before.split())
    ours = [name for name in left if "flatout" in name or "/uv" in name or "/pip" in name]
    guest.remove()
    return found + [f"left behind: {name}" for name in ours]


def without_venv(machines: Machines) -> list[str]:
    """Without python3-venv, curl and wget, but with a mirror of uv."""
    guest = Guest(machines.docker, machines.plain, "person")
    more = {"FLATOUT_UV_MIRROR": "file:///house/uv"}
    found = reported(guest.install(script="/house/install-uv.sh", **more)) + reported(
        guest.ask(*SETUP)
    )
    found += guest.faults("jax")
    guest.remove()
    return found


def real_torch(machines: Machines) -> list[str]:
    """The only framework that is not a fake; its own index cannot be reached."""
    guest = machines.person()
    found = reported(guest.ask("setup", "torch", "--cpu", "--yes")) + guest.faults("torch")
    found += reported(guest.ask("train", "digits", "--env", "torch", "--epochs", "1"))
    guest.remove()
    return found


def little_room(machines: Machines) -> list[str]:
    """200 MB for the home folder, with flatout in it; then another disk is given."""
    guest = Guest(machines.docker, machines.image, "person",
                  limits=Limits(disk={"/home/person": "200m"}))  # fmt: skip
    found = reported(guest.install()) + refused(guest.ask(*SETUP), "disk-full") + guest.faults()
    place = {"FLATOUT_ENVIRONMENTS": "/var/tmp/made", "FLATOUT_CACHE": "/var/tmp/cache"}
    found += reported(guest.run(guest.flatout, *SETUP, **place))
    guest.remove()
    return found


def full_disk(machines: Machines) -> list[str]:
    """Another process fills the disk while the environment is created, then frees it."""
    guest = machines.person(Limits(disk={"/var/tmp/made": "230m"}))
    place = {"FLATOUT_ENVIRONMENTS": "/var/tmp/made"}
    process = guest.start(guest.flatout, *SETUP, **place)
    guest.run("sh", "-c", "while [ ! -d /var/tmp/made/jax ]; do sleep 0.01; done; "
              "cat /dev/zero >/var/tmp/made/other 2>/dev/null")  # fmt: skip
    found = refused(_ended(process), "disk-full")
    left = guest.run("ls", "/var/tmp/made").stdout.split()
    found += [] if left == ["other"] else [f"the folder holds {left}"]
    guest.run("rm", "-f", "/var/tmp/made/other")
    found += reported(guest.run(guest.flatout, *SETUP, **place))
    guest.remove()
    return found


def cut_network(machines: Machines) -> list[str]:
    """The connection to the index is cut during a download, then restored."""
    docker = machines.docker
    network = docker.network()
    server = Guest(docker, machines.ready, limits=Limits(network=network))
    server.start("python3", "/house/slow_index.py", "/house/simple", "80", "400000", "/asked")
    index = f"http://{server.container.name}"
    guest = machines.person(Limits(network=network), index=index)
    ask = f"import urllib.request; urllib.request.urlopen('{index}/jax/')"
    _wait(lambda: guest.run("python3", "-c", ask).returncode == 0)
    process = guest.start(guest.flatout, *SETUP, "--manager", "pip")
    find = f"find {guest.home}/.cache/flatout/wheels -name '*.part' -size +500k | grep ."
    _wait(lambda: guest.run("sh", "-c", find).returncode == 0)
    guest.container.disconnect(network)
    found = refused(_ended(process), "download-failed") + guest.faults()
    guest.container.connect(network)
    found += reported(guest.ask(*SETUP, "--manager", "pip")) + guest.faults("jax")
    guest.remove()
    server.remove()
    return found


def killed(machines: Machines, num_kills: int, *, is_power_cut: bool) -> Iterator[list[str]]:
    """Killed at random moments (flatout alone, or the whole machine), then run again."""
    dice = random.Random(num_kills)
    guest = machines.person()
    began = time.perf_counter()
    must(guest.ask(*SETUP))
    whole_s = time.perf_counter() - began
    for _ in range(num_kills):
        must(guest.ask(*REMOVE))
        process = guest.start(guest.flatout, *SETUP)
        time.sleep(dice.uniform(0.05, 1.0) * whole_s)
        if is_power_cut:
            guest.container.kill()
            guest.container.boot()
        else:
            guest.kill()
        _ended(process)
        yield reported(guest.ask(*SETUP)) + guest.faults("jax")
    guest.remove()


def _ended(process: subprocess.Popen[str]) -> subprocess.CompletedProcess[str]:
    stdout, stderr = process.communicate(timeout=_WAIT_S)
    return subprocess.CompletedProcess(process.args, process.returncode, stdout, stderr)


def _wait(is_so: Callable[[], bool]) -> None:
    until = time.monotonic() + _WAIT_S
    while not is_so():
        if time.monotonic() > until:
            sys.exit("the machines did not start")
        time.sleep(0.1)


def rows(machines: Machines, num_kills: int, *, has_torch: bool) -> Iterator[dict[str, Any]]:
    """One row for each situation."""
    once: dict[str, Callable[[], list[str]]] = {
        "as root, install to removal": lambda: from_install_to_removal(machines, "root"),
        "as a user, install to removal": lambda: from_install_to_removal(machines, "person"),
        "no python3-venv, curl or wget": lambda: without_venv(machines),
        "200 MB of disk": lambda: little_room(machines),
        "disk fills up": lambda: full_disk(machines),
        "network cut and returned": lambda: cut_network(machines),
    }
    if has_torch:
        once["real torch, and a training"] = lambda: real_torch(machines)
    for name, situation in once.items():
        began = time.perf_counter()
        found = situation()
        yield _row(name, [time.perf_counter() - began], [found])
    for name, is_power_cut in {"flatout killed": False, "power cut": True}.items():
        seconds, faults = [], []
        began = time.perf_counter()
        for found in killed(machines, num_kills, is_power_cut=is_power_cut):
            seconds.append(time.perf_counter() - began)
            faults.append(found)
            began = time.perf_counter()
        yield _row(name, seconds, faults)


def _row(name: str, seconds: list[float], faults: list[list[str]]) -> dict[str, Any]:
    num_whole = sum(not found for found in faults)
    text = f"{num_whole} of {len(faults)} whole"
    print(f"{name:<32}{text:<18}{sum(seconds):6.0f} s", flush=True)
    for found in faults:
        print("\n".join(f"    {one}" for one in found), end="\n" if found else "", flush=True)
    return {"situation": name, "times": len(faults), "whole": num_whole, "seconds": seconds,
            "faults": [one for found in faults for one in found]}  # fmt: skip


def main() -> int:
    """Runs all situations; 1 if anything was incomplete afterwards."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--torch", action="store_true", help="also install the real torch (200 MB)")
    parser.add_argument(
        "--out", type=Path, default=RESULTS, help="output folder (default: results)"
    )
    options = parser.parse_args()
    docker = find_docker()
    try:
        make_house()
        if options.torch:
            add_torch()
        found = list(rows(Machines(docker), options.kills, has_torch=options.torch))
    finally:
        docker.clean()
    machine = read_machine()
    print(machine_text(machine))
    measurements = [
        measurement(row["situation"], "s", tuple(row["seconds"]),
                    {"times": row["times"], "whole": row["whole"]}) for row in found
    ]  # fmt: skip
    print(write_result("setup-containers", machine, measurements, {"rows": found}, options.out))
    return int(any(row["whole"] < row["times"] for row in found))


if __name__ == "__main__":
    sys.exit(main())
