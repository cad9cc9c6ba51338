"""`flatout setup` where it cannot be done: a clear error, an exit code, nothing left behind."""

from __future__ import annotations

import json
import os
import shutil
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.fake_home import PYTHON, Home, rule_of

AGREED = ("--cpu", "--yes", "--manager", "pip")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def assert_nothing_left(home: Home) -> None:
    there = list(home.environments.iterdir()) if home.environments.exists() else []
    assert [path.name for path in there if path.name != ".lock"] == []


@pytest.mark.parametrize(
    ("words", "code", "rule"),
    [
        (("jax", "--python", "3.10"), (1, 2), "nothing-fits python-version-not-found"),
        (("jax", "--python", "4.0"), (1,), "nothing-fits"),
        (("jax==99", "--python", PYTHON), (1,), "nothing-fits"),
        (("jax", "--python", PYTHON, "--mirror", "data=https://x"), (2,), "bad-mirror"),
        (("jax", "--repair", ".venv"), (2,), "options-exclude-each-other"),
    ],
)
def test_setup_when_it_is_not_to_be_had(
    home: Home, words: tuple[str, ...], code: tuple[int, ...], rule: str
) -> None:
    done = home.run("setup", *words, *AGREED, "--json")
    assert rule_of(done) in rule.split() and done.returncode in code
    assert json.loads(done.stdout)["error"]["rule"] == rule_of(done)
    assert_nothing_left(home)


def test_setup_when_there_is_no_network(home: Home) -> None:
    done = home.run("setup", "jax", "--python", PYTHON, *AGREED,
                    PIP_INDEX_URL="http://127.0.0.1:9/simple")  # fmt: skip
    assert (done.returncode, rule_of(done)) == (1, "index-not-reachable")
    assert "--mirror packages=URL" in done.stderr
    assert_nothing_left(home)


@pytest.mark.skipif(sys.platform == "win32" or os.geteuid() == 0, reason="needs a user, not root")
def test_setup_when_the_folder_cannot_be_written(home: Home) -> None:
    home.folder.joinpath("shut").mkdir(mode=0o500)
    folder = str(home.folder / "shut" / "mine")
    done = home.run("setup", "jax", "--python", PYTHON, "--in", folder, *AGREED)
    assert (done.returncode, rule_of(done)) == (2, "folder-not-writable")


@pytest.fixture
def https_index(home: Home) -> Iterator[str]:
    """The index of the tests behind a certificate that nobody vouches for."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("needs openssl, which makes the certificate")
    made = [home.folder / "key.pem", home.folder / "certificate.pem"]
    subprocess.run(
        [openssl, "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj",
         "/CN=localhost", "-addext", "subjectAltName=DNS:localhost", "-keyout", made[0],
         "-out", made[1]], check=True, capture_output=True,
    )  # fmt: skip
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made[1], made[0])

    class Quiet(SimpleHTTPRequestHandler):
        def __init__(self, *arguments: object) -> None:
            super().__init__(*arguments, directory=str(home.folder))  # type: ignore[arg-type]

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    server = ThreadingHTTPServer(("localhost", 0), Quiet)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    yield f"https://localhost:{server.server_port}/simple"
    server.shutdown()
    server.server_close()


def test_setup_when_the_certificate_is_not_trusted(home: Home, https_index: str) -> None:
    words = ("setup", "jax", "--python", PYTHON, *AGREED)
    done = home.run(*words, PIP_INDEX_URL=https_index)
    assert (done.returncode, rule_of(done)) == (1, "certificate-not-trusted")
    assert "SSL_CERT_FILE=" in done.stderr
    assert_nothing_left(home)
    # These two win over all that pip is told.
    quiet = {"REQUESTS_CA_BUNDLE": "", "CURL_CA_BUNDLE": ""}
    trusted = str(home.folder / "certificate.pem")
    again = home.run(*words, PIP_INDEX_URL=https_index, SSL_CERT_FILE=trusted, **quiet)
    assert again.returncode == 0, again.stderr
