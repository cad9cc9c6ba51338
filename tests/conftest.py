"""What holds for all tests."""

from __future__ import annotations

import os
import signal
import sys

from hypothesis import HealthCheck, settings

# A busy machine is no reason to fail; and what a submission is judged by must not be luck: in CI
# the same examples are tried each time, elsewhere new ones.
settings.register_profile(
    "house",
    deadline=None,
    derandomize="CI" in os.environ,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("house")

# Whoever starts a test run in the background of a script has told it to ignore Ctrl-C, and every
# process that a test starts would inherit that; what is handled here is not inherited.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# It is set in many containers. Each process that a test starts would compile all modules of torch
# again, which doubles the time of an import.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False
