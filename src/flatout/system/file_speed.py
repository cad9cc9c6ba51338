"""Read speed of files in place: many small ones, and one large one.

In a process of its own (`python -P -m flatout.system.file_speed FOLDER`), because a disconnected
share hangs every process that touches it. What is written is a folder that is removed again.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import time

# What a loader of images meets; and what a checkpoint or a shard is.
SMALL_FILE_BYTES = 16 * 1024
NUM_SMALL_FILES = 64
STREAM_BYTES = 16 * 1024 * 1024
LIMIT_S = 2.0


def measure(folder: str, limit_s: float = LIMIT_S) -> dict[str, float]:
    """small_files_bytes_s and stream_bytes_s: written and read, opening included.

    What was just written comes back from memory, so writing is timed too: on a share each file is a
    request to its server, and that is what makes it slow. Nothing takes longer than limit_s.
    """
    end = time.perf_counter() + limit_s
    with tempfile.TemporaryDirectory(prefix=".flatout-", dir=folder) as inside:
        small = _rate(inside, SMALL_FILE_BYTES, NUM_SMALL_FILES, end)
        stream = _rate(inside, STREAM_BYTES, 1, end)
    return {"small_files_bytes_s": small, "stream_bytes_s": stream}


def _rate(folder: str, num_bytes: int, num_files: int, end: float) -> float:
    """Bytes a second of files that are written, read and closed, one after the other."""
    content = os.urandom(num_bytes)
    began = time.perf_counter()
    done = 0
    for index in range(num_files):
        path = os.path.join(folder, f"{num_bytes}-{index}")
        with open(path, "wb") as file:
            file.write(content)
        with open(path, "rb") as file:
            done += len(file.read())
        if time.perf_counter() > end:
            break
    return done / (time.perf_counter() - began)


if __name__ == "__main__":
    try:
        sys.stdout.write(json.dumps(measure(sys.argv[1])))
    except OSError as error:
        sys.exit(f"{error.strerror or error}")
