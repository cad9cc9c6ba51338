"""The list of GPUs in `--gpus` is not quoted as Docker wants it.

**Checks.** Docker's word about Count and DeviceIDs.

**Why it matters.** `--gpus` is read as a line of CSV: `device=0,1` is a device and then a count. A
pair of quotes within the shell's keeps it together.

**Example.** `cannot set both Count and DeviceIDs on device request`

**Fix.** `--gpus '"device=0,1"'`; by hand.

**Source.** https://docs.docker.com/reference/cli/docker/container/run (--gpus)
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix


def check(case: Case) -> Finding | None:
    """Docker says so; or Compose, of both in one reservation."""
    if not case.sees("count-and-devices"):
        return None
    return Finding(
        rule="docker-gpus-option-unquoted",
        severity="error",
        problem="The GPUs are asked for by number and by name at once.",
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
