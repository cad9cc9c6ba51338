"""`requirements.lock`: every package of an environment with version and hash, as pip reads it."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from flatout.errors import UsageError
from flatout.schema.environment import FrameworkName, Pin

_FIRST = "# Lock file of a flatout environment; to recreate it: flatout setup --from FILE"
_PIN = re.compile(
    r"(?P<name>[A-Za-z0-9][\w.-]*)==(?P<version>[\w.!+-]+)\s+--hash=sha256:(?P<sha256>[0-9a-f]{64})"
)


class LockFile(msgspec.Struct, frozen=True, kw_only=True):
    """The contents of a lock file. platform: like "linux x86_64"; cuda: like "cu126", or "cpu".

    pins: those of the lock know no address, only name, version and hash.
    """

    framework: FrameworkName
    python: str
    platform: str
    cuda: str
    index: str | None
    pins: tuple[Pin, ...]


def lock_text(lock: LockFile) -> str:
    """The lock as a requirements file."""
    facts = {
        "framework": lock.framework, "python": lock.python, "platform": lock.platform,
        "cuda": lock.cuda, "index": lock.index or "",
    }  # fmt: skip
    lines = [_FIRST, *(f"# {name}: {value}".rstrip() for name, value in facts.items())]
    if lock.index:
        lines.append(f"--extra-index-url {lock.index}")
    lines += [
        f"{pin.name}=={pin.version} \\\n    --hash=sha256:{pin.sha256}"
        for pin in sorted(lock.pins, key=lambda pin: pin.name)
    ]
    return "\n".join(lines) + "\n"


def parse_lock(text: str, source: str) -> LockFile:
    """A lock that `lock_text` wrote.

    Raises:
        UsageError: not-a-lock.
    """
    facts = dict(re.findall(r"^# (\w+): ?(.*)$", text, re.MULTILINE))
    lines = re.sub(r"\\\n", " ", text).splitlines()
    pin_lines = [line for line in lines if line.strip() and not line.startswith(("#", "--"))]
    pins = [match.groupdict() for line in pin_lines if (match := _PIN.fullmatch(line.strip()))]
    try:
        if not pins or len(pins) != len(pin_lines):
            raise msgspec.ValidationError("each line must be name==version with one --hash=sha256")
        return msgspec.convert(
            {
                **facts,
                "index": facts.get("index") or None,
                "pins": [{**pin, "url": ""} for pin in pins],
            },
            LockFile,
        )
    except msgspec.ValidationError as error:
        raise UsageError(
            "not-a-lock",
            f"{source} is not a flatout lock file.",
            because=str(error),
            fix="pass a requirements.lock that `flatout setup` has written; "
            "for any other requirements file: flatout setup -r FILE",
        ) from error


def requirement_lines(pins: Sequence[Pin]) -> list[str]:
    """Pins as lines that are installed exactly so or not at all."""
    return [f"{pin.name}=={pin.version} --hash=sha256:{pin.sha256}" for pin in pins]
