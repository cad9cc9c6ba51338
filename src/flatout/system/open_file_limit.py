"""How many files and connections this process may have open. Raising it is for programs to do: the
usual 1,024 are kept low for those that wait with `select`, which cannot count further.
"""

from __future__ import annotations

import sys

# More is of no use to one process here, and some systems refuse to raise it without a bound.
_MOST = 65_536


def raise_open_file_limit() -> None:
    """Raises the limit as far as this user may; children that are started later have it, too."""
    # Windows has no such limit for sockets.
    if sys.platform == "win32":
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _MOST if hard == resource.RLIM_INFINITY else min(hard, _MOST)
    if soft == resource.RLIM_INFINITY:
        return
    # macOS names no hard limit, but refuses more than `kern.maxfilesperproc`, which may be less.
    while soft < most:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
            return
        except (OSError, ValueError):
            most //= 2
