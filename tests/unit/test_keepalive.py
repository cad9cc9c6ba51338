"""Connections that are to notice when their other end cannot be reached."""

from __future__ import annotations

import os
import socket
import sys

import pytest

from flatout.system.keepalive import notice_cuts

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no numbers of open files there")


def test_every_tcp_connection_of_this_process_notices_cuts() -> None:
    reading, writing = os.pipe()
    here, there = socket.socketpair()
    with socket.create_server(("127.0.0.1", 0)) as server, here, there:
        client = socket.create_connection(server.getsockname())
        accepted, _ = server.accept()
        with client, accepted:
            # The listener as well: what it accepts later is as it is.
            assert notice_cuts(6.0) >= 3
            for one in (client, accepted):
                assert one.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
                if sys.platform == "linux":
                    assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 6000
                    assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE) == 3
            # Their numbers are still theirs, and they still work.
            client.sendall(b"here")
            assert accepted.recv(4) == b"here"
        assert not here.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    os.close(reading)
    os.close(writing)
