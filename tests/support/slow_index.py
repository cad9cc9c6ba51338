"""A package index that answers slowly: `python slow_index.py FOLDER PORT BYTES_PER_S LOG`.

It supports ranges, so that downloads can be resumed, and writes requests to LOG. It runs alone in a
container, with only Python's standard library.
"""

from __future__ import annotations

import http.server
import sys
import time
from pathlib import Path

_PIECES_PER_S = 10


def main(folder: str, port: str, bytes_per_s: str, log: str) -> None:
    """Serves until it is killed."""
    top = Path(folder).resolve()
    piece_bytes = int(bytes_per_s) // _PIECES_PER_S

    class Giver(http.server.BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._give(is_head=True)

        def do_GET(self) -> None:
            self._give(is_head=False)

        def _give(self, *, is_head: bool) -> None:
            path = top / self.path.partition("?")[0].strip("/")
            path = path / "index.html" if path.is_dir() else path
            if not path.is_file():
                self.send_error(404)
                return
            content = path.read_bytes()
            first, last = self._range(len(content))
            with open(log, "a", encoding="utf-8") as file:
                file.write(f"{self.command} {path.name} {first}\n")
            is_part = "Range" in self.headers
            self.send_response(206 if is_part else 200)
            kind = "text/html" if path.suffix == ".html" else "application/octet-stream"
            self.send_header("Content-Type", kind)
            self.send_header("Accept-Ranges", "bytes")
            self.send_header("Content-Length", str(last + 1 - first))
            if is_part:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(content)}")
            self.end_headers()
            if is_head:
                return
            for start in range(first, last + 1, piece_bytes):
                self.wfile.write(content[start : min(start + piece_bytes, last + 1)])
                if last - first > piece_bytes:
                    time.sleep(1 / _PIECES_PER_S)

        def _range(self, size_bytes: int) -> tuple[int, int]:
            asked = self.headers.get("Range", "").removeprefix("bytes=")
            first, _, last = asked.partition("-")
            if asked and not first:
                return max(0, size_bytes - int(last)), size_bytes - 1
            return int(first or 0), min(int(last or size_bytes), size_bytes - 1)

        def log_message(self, *_: object) -> None: ...

    http.server.ThreadingHTTPServer(("", int(port)), Giver).serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
