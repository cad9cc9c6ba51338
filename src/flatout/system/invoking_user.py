"""The user behind the command: with `sudo` not the user of this process."""

from __future__ import annotations

import getpass
import os
import sys


def invoking_user() -> str:
    """Name of the user; their number where no name is known, as in a container."""
    person = sudo_user()
    if person:
        return person
    try:
        return getpass.getuser()
    except (KeyError, OSError, ImportError):  # Which of them depends on system and Python.
        if sys.platform == "win32":
            return ""
        return str(os.getuid())


def sudo_user() -> str | None:
    """The user who typed `sudo`; None without it."""
    is_root = sys.platform != "win32" and os.geteuid() == 0
    return os.environ.get("SUDO_USER") or None if is_root else None


def is_in_group(user: str, name: str) -> bool:
    """Whether a user belongs to a group by the system's own lists."""
    if sys.platform == "win32":
        return False
    import grp
    import pwd

    try:
        group = grp.getgrnam(name)
        return user in group.gr_mem or pwd.getpwnam(user).pw_gid == group.gr_gid
    except KeyError:
        return False
