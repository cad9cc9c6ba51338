"""install.sh where no Python can make an environment: uv is fetched, checked, and does it."""

from __future__ import annotations

import hashlib
import http.server
import os
import re
import shutil
import sys
import tarfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from flatout import __version__

if TYPE_CHECKING:
    from conftest import Person

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="install.ps1 is Windows' script")

# Stands for uv: makes environments with the Python of this test, and says what it was asked.
UV = """#!/bin/sh
echo "$@" >>"$HOME/asked"
case $1 in
    --version) echo uv 0 ;;
    venv) while [ "${1#/}" = "$1" ] || [ -f "$1" ]; do shift; done; exec PYTHON -m venv "$1" ;;
    pip) shift 3; shift; python=$1; shift; exec "$python" -m pip install --quiet "$@" ;;
esac
"""


@pytest.fixture
def archive(tmp_path: Path) -> Path:
    """What uv is fetched as."""
    folder = tmp_path / "made" / "uv-any"
    folder.mkdir(parents=True)
    (folder / "uv").write_text(UV.replace("PYTHON", os.path.realpath(sys.executable)))
    (folder / "uv").chmod(0o755)
    # As large as a download that can break off.
    (folder / "uvx").write_bytes(os.urandom(300_000))
    path = tmp_path / "made" / "uv.tar.gz"
    with tarfile.open(path, "w:gz") as file:
        file.add(folder, "uv-any")
    return path


@pytest.fixture
def mirror(archive: Path) -> Iterator[str]:
    """A server that gives the archive under every name."""

    class Giver(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            content = archive.read_bytes()
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Giver)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


def script_for(archive: Path, folder: Path) -> Path:
    """The script, with the archive's checksum in the place of uv's."""
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    text = (ROOT / "install.sh").read_text()
    path = folder / "install.sh"
    path.write_text(re.sub(r"sha256=[0-9a-f]{64}", f"sha256={digest}", text))
    return path


def add_downloader(person: Person) -> None:
    person.add("curl" if shutil.which("curl") else "wget")


@pytest.mark.parametrize("is_half_there", [False, True])
def test_install_when_there_is_no_python(
    bare_person: Person, wheel: Path, archive: Path, mirror: str, is_half_there: bool
) -> None:
    add_downloader(bare_person)
    if is_half_there:
        # What a broken download has left: of something else, since the server knows no ranges.
        bare_person.app.mkdir(parents=True)
        for target in ("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"):
            (bare_person.app / f"uv-0.12.15-{target}.tar.gz.part").write_bytes(b"half")
    script = script_for(archive, bare_person.home.parent)
    more = {"FLATOUT_UV_MIRROR": mirror, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
    done = bare_person.install("--from", wheel, script=script, **more)
    assert done.returncode == 0, done.stderr
    assert "uv fetches 3.12" in done.stdout
    assert bare_person.flatout("--version").stdout == f"flatout {__version__}\n"
    asked = (bare_person.home / "asked").read_text()
    assert "venv --no-project --python 3.12" in asked
    assert not list(bare_person.app.glob("*.part"))


def test_install_refuses_a_changed_uv(bare_person: Person, wheel: Path, mirror: str) -> None:
    add_downloader(bare_person)
    # The script as it is: it knows the checksum of the real one.
    done = bare_person.install("--from", wheel, FLATOUT_UV_MIRROR=mirror)
    assert done.returncode == 1 and "damaged or was changed" in done.stderr
    assert [path.name for path in bare_person.app.iterdir()] == []


def test_install_says_what_is_missing_when_nothing_downloads(
    bare_person: Person, wheel: Path
) -> None:
    done = bare_person.install("--from", wheel)
    assert done.returncode == 1 and "neither curl nor wget nor Python" in done.stderr


@pytest.mark.parametrize("is_half_there", [False, True])
def test_install_when_python_alone_can_download(
    person: Person, wheel: Path, archive: Path, mirror: str, is_half_there: bool
) -> None:
    # As Debian's Python without its package python3-venv.
    python = os.path.realpath(sys.executable)
    (person.programs / "python3").unlink()
    (person.programs / "python3").write_text(
        f'#!/bin/sh\nif [ "$1$2" = -mvenv ]; then echo no ensurepip; exit 1; fi\n'
        f'exec {python} "$@"\n'
    )
    (person.programs / "python3").chmod(0o755)
    if is_half_there:
        person.app.mkdir(parents=True)
        for target in ("x86_64-unknown-linux-musl", "aarch64-unknown-linux-musl"):
            (person.app / f"uv-0.12.15-{target}.tar.gz.part").write_bytes(b"half")
    script = script_for(archive, person.home.parent)
    more = {"FLATOUT_UV_MIRROR": mirror, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
    done = person.install("--from", wheel, script=script, **more)
    assert done.returncode == 0, done.stderr
    assert "it has no ensurepip" in done.stdout
    assert person.flatout("--version").stdout == f"flatout {__version__}\n"
    assert not list(person.app.glob("*.part")) and not (person.app / "cache").exists()


def test_install_gives_uv_the_index_that_pip_has(bare_person: Person, wheel: Path) -> None:
    uv = bare_person.programs / "uv"
    said = 'echo "$UV_DEFAULT_INDEX $UV_INDEX $UV_INSECURE_HOST" >>"$HOME/places"\n'
    uv.write_text(
        UV.replace("PYTHON", os.path.realpath(sys.executable)).replace("case", said + "case", 1)
    )
    uv.chmod(0o755)
    conf = bare_person.home / ".config/pip/pip.conf"
    conf.parent.mkdir(parents=True)
    conf.write_text("[global]\nindex-url = https://a.example/simple\ntrusted-host: a.example\n")
    offline = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(wheel.parent)}
    more = {"PIP_EXTRA_INDEX_URL": "https://b.example/simple", **offline}
    done = bare_person.install("--from", wheel, **more)
    assert done.returncode == 0, done.stderr
    places = (bare_person.home / "places").read_text().splitlines()
    assert places[-1] == "https://a.example/simple https://b.example/simple a.example"


def test_install_says_so_when_the_network_is_cut(bare_person: Person, wheel: Path) -> None:
    add_downloader(bare_person)
    done = bare_person.install("--from", wheel, FLATOUT_UV_MIRROR="http://127.0.0.1:9")
    assert done.returncode == 1 and "could not download" in done.stderr


def test_install_takes_a_uv_that_is_there(bare_person: Person, wheel: Path) -> None:
    uv = bare_person.programs / "uv"
    uv.write_text(UV.replace("PYTHON", os.path.realpath(sys.executable)))
    uv.chmod(0o755)
    done = bare_person.install("--from", wheel, "--offline")
    assert done.returncode == 0, done.stderr
    assert bare_person.flatout("--version").returncode == 0
