"""`flatout` and `python -m flatout`."""

from __future__ import annotations

import sys

from flatout.cli.main import run


def main() -> None:
    """Runs the command line and ends with its exit code."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
