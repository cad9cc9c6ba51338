"""Shows a long text page by page, as git does: with $PAGER, else less, else not at all."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess


def page(text: str) -> bool:
    """Hands a text to the pager, and waits until it is read; False where there is none."""
    configured = os.environ.get("PAGER")
    command = shlex.split(configured) if configured else ["less"]
    program = shutil.which(command[0]) if command else None
    if program is None or configured == "":
        return False
    # As git sets it: ends where all fits on the screen, shows colours, leaves the text there.
    variables = {"LESS": "FRX", **os.environ}
    try:
        with subprocess.Popen(
            [program, *command[1:]], stdin=subprocess.PIPE, env=variables
        ) as reader:
            reader.communicate(text.encode())
    except OSError:
        return False
    except KeyboardInterrupt:
        # The pager has got it, too, and has ended.
        pass
    return True
