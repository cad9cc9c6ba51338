"""Connections that end where their other end cannot be reached, and only there."""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from flatout.system.tcp_keepalive import TcpKeepalive, open_connections

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no numbers of open files there")

# In a network of its own, which goes away under a connection on which something is under way.
CUT = """
import fcntl, socket, struct, sys, time
from flatout.system.tcp_keepalive import TcpKeepalive, open_connections

def set_up(is_up):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as one:
        fcntl.ioctl(one, 0x8914, struct.pack("16sH14x", b"lo", is_up))

set_up(True)
server = socket.create_server(("127.0.0.1", 0))
client = socket.create_connection(server.getsockname())
accepted, _ = server.accept()
TcpKeepalive(1.0)
set_up(False)
begin_s = time.monotonic()
client.sendall(b"here")
client.settimeout(60)
try:
    print(client.recv(1))
except OSError as error:
    print(error)
print(time.monotonic() - begin_s)
"""
IN_ITS_OWN_NETWORK = ["unshare", "--user", "--map-root-user", "--net"]


@contextlib.contextmanager
def connected() -> Iterator[tuple[socket.socket, socket.socket]]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            yield client, accepted


def test_every_tcp_connection_of_this_process_is_watched() -> None:
    reading, writing = os.pipe()
    here, there = socket.socketpair()
    with connected() as pair, here, there:
        watch = TcpKeepalive(6.0)
        # The listener as well: what it accepts later is as it is.
        assert watch.num_connections >= 3
        for one in pair:
            assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
            if sys.platform == "linux":
                assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 3
        # Their numbers are still theirs, and they still work.
        pair[0].sendall(b"here")
        assert pair[1].recv(4) == b"here"
        assert not here.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
        watch.end()
    os.close(reading)
    os.close(writing)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux shows a connection's state")
def test_a_connection_that_its_other_end_has_closed_is_not_open() -> None:
    before = open_connections()
    with connected() as (client, accepted):
        assert len(open_connections() - before) == 2
        accepted.close()
        client.recv(1)
        assert open_connections() - before == set()


def test_who_reads_nothing_is_waited_for() -> None:
    with connected() as (client, accepted):
        watch = TcpKeepalive(1.0)
        client.setblocking(False)
        num_sent = 0
        # Until both kernels hold all that they may: then the one asks the other, again and again.
        with contextlib.suppress(BlockingIOError):
            while True:
                num_sent += client.send(bytes(1 << 20))
        time.sleep(3.0)
        client.setblocking(True)
        accepted.settimeout(120)
        while num_sent > 0:
            num_sent -= len(accepted.recv(1 << 20))
        client.sendall(b"here")
        assert accepted.recv(4) == b"here"
        watch.end()


def _has_networks() -> bool:
    if shutil.which("unshare") is None:
        return False
    tried = subprocess.run([*IN_ITS_OWN_NETWORK, "true"], check=False, stderr=subprocess.DEVNULL)
    return tried.returncode == 0


@pytest.mark.skipif(not _has_networks(), reason="needs the right to make a network of its own")
def test_what_is_cut_off_while_something_is_under_way_ends() -> None:
    done = subprocess.run(
        [*IN_ITS_OWN_NETWORK, sys.executable, "-c", CUT],
        capture_output=True, text=True, timeout=180, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    received, took_s = done.stdout.splitlines()
    assert received == "b''"
    assert 0.9 < float(took_s) < 30
