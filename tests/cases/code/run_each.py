"""Runs programs one after the other, each in a child of this process, which has loaded torch.

A line on stdin names a program, a folder to run it in, and one whose modules come first. What it
prints goes into `printed.txt` there; its exit code is the answer. Needs `os.fork`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

import torch
import torch._dynamo  # noqa: F401 - the first update of any optimizer would import it


def main() -> None:
    """Runs what is asked for until stdin ends; a child ends as its program does."""
    for line in sys.stdin:
        asked = json.loads(line)
        child = os.fork()
        if child == 0:
            run(asked["program"], asked["folder"], asked["python_path"])
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


def run(program: str, folder: str, python_path: str) -> None:
    """Runs a program as `python PROGRAM` would in that folder."""
    os.chdir(folder)
    printed = os.open("printed.txt", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    for stream in (1, 2):
        os.dup2(printed, stream)
    sys.path[0:1] = [folder, python_path]
    runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    main()
