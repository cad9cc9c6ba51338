"""What the tests with containers stand on: limits that hold, networks cut, nothing left."""

from __future__ import annotations

import subprocess
from pathlib import Path

from containers import LABEL, Docker, Limits

_READ_UP = "import socket; print(socket.create_connection(('{host}', 8000), 3).recv(2))"
_SERVE = """
import socket
server = socket.create_server(("", 8000))
while True:
    server.accept()[0].sendall(b"up")
"""


def test_container_has_python_alone_and_its_limits(docker: Docker, base_image: str) -> None:
    limits = Limits(memory="256m", disk={"/small": "5m"})
    made = docker.container(base_image, limits=limits, variables={"ONE": "1"})
    assert made.run("sh", "-c", "echo $ONE; id -u", user="nobody").stdout == "1\n65534\n"
    assert made.run("python3", "-c", "import ensurepip").returncode != 0
    full = made.run("sh", "-c", "head -c 9000000 /dev/zero >/small/file")
    assert "No space left" in full.stderr
    eater = made.run("python3", "-c", "held = bytearray(400_000_000)")
    assert eater.returncode == 137, eater.stderr
    made.remove()


def test_container_when_its_power_goes(docker: Docker, base_image: str, tmp_path: Path) -> None:
    made = docker.container(base_image)
    waiting = made.start("sh", "-c", "echo here >/root/file; sleep 600")
    while made.run("test", "-s", "/root/file").returncode != 0:
        pass
    made.kill()
    assert waiting.wait(30) != 0
    made.boot()
    made.get("/root/file", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "here\n"
    made.put(tmp_path / "file", "/root/second")
    assert made.run("cat", "/root/second").stdout == "here\n"
    made.remove()


def test_network_when_it_is_cut(docker: Docker, base_image: str) -> None:
    network = docker.network()
    limits = Limits(network=network)
    server = docker.container(base_image, limits=limits, command=("python3", "-c", _SERVE))
    client = docker.container(base_image, limits=limits)

    def ask() -> subprocess.CompletedProcess[str]:
        return client.run("python3", "-c", _READ_UP.format(host=server.name))

    while "refused" in ask().stderr:
        pass
    assert ask().stdout == "b'up'\n"
    client.disconnect(network)
    assert ask().returncode != 0
    client.connect(network)
    assert ask().stdout == "b'up'\n"


def test_image_when_it_is_built_and_all_is_removed(docker: Docker, base_image: str) -> None:
    second = Docker(docker.program, owner="second")
    text = f"FROM {base_image}\nARG WORD\nRUN echo $WORD >/word\n"
    image = second.build(text, arguments={"WORD": "built", "UNUSED": "x"})
    made = second.container(image, limits=Limits(network=second.network()))
    assert made.run("cat", "/word").stdout == "built\n"
    mine = f"label={LABEL}={second.owner}"
    second.clean()
    for kind in ("container", "network", "image"):
        every = ["--all"] if kind == "container" else []
        assert docker.ask(kind, "ls", *every, "--quiet", "--filter", mine).stdout == ""
    assert docker.ask("image", "inspect", base_image).returncode == 0
