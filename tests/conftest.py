"""What holds for all tests."""

from __future__ import annotations

import os

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
