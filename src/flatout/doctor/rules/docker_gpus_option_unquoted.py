"""The GPU list in `--gpus` needs extra quotes.

**Checks.** Docker's error about Count and DeviceIDs.

**Why it matters.** Docker parses `--gpus` as CSV: `device=0,1` is a device followed by a count. A
second pair of quotes inside the shell's keeps the list together.

**Example.** `cannot set both Count and DeviceIDs on device request`

**Fix.** `--gpus '"device=0,1"'`; by hand.

**Source.** https://docs.docker.com/reference/cli/docker/container/run (--gpus)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Docker reports it; or Compose, for both in one reservation."""
    if not case.sees("count-and-devices"):
        return None
    return Finding(
        rule="docker-gpus-option-unquoted",
        severity="error",
        problem="`--gpus` requests GPUs both by count and by device id.",
        because="Docker reads `--gpus device=0,1` as a device and a count",
        evidence=case.evidence("count-and-devices"),
        fixes=(
            Fix(
                text="quote the list twice (in Compose write `count` or `device_ids`, not both)",
                commands=("docker run --rm --gpus '\"device=0,1\"' ubuntu nvidia-smi",),
                where="host",
            ),
        ),
    )


RULE = Rule(
    check=check,
    prior=60,
    signatures=(
        signature(
            "count-and-devices",
            "cannot set both Count and DeviceIDs",
            "attributes are exclusive",
            pattern=r"Count and DeviceIDs|\"?(?:count|device_ids)\"? and \"?(?:count|device_ids)\"?"
            r" attributes are exclusive",
        ),
    ),
)
