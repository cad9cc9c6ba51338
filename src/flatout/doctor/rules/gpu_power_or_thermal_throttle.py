"""The GPU is throttled: power or heat limits its clocks.

**Checks.** The active reasons in `nvidia-smi -q`, their bits, and messages of dcgm and GPU-Z. On
the machine: NVML's reasons, except idle and the power limit.

**Why it matters.** Nothing fails, but training takes longer. A software power cap at full load is
normal; a hardware slowdown, a power brake or heat points to a cooling or power supply problem.

**Example.** `HW Thermal Slowdown : Active`

**Fix.** Check temperatures, fans, power limit and cables; by hand.

**Source.** https://docs.nvidia.com/deploy/nvml-api, nvmlClocksEventReasons.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix
from flatout.schema.machine import Machine

_HARD = ("throttled-by-hardware", "throttled-by-heat", "throttle-bits-hard", "throttle-told")
_SOFT = ("throttled-by-power-cap", "throttle-bits-soft")


def check(case: Case) -> Finding | None:
    """A reason other than idle is active."""
    if not case.sees(*_HARD, *_SOFT):
        return None
    is_hard = case.sees(*_HARD)
    certainty: Certainty = "decided" if is_hard else "likely"
    return Finding(
        rule="gpu-power-or-thermal-throttle",
        severity="warning",
        certainty=certainty,
        problem="Heat or power limits the GPU's clocks."
        if is_hard
        else "The power limit caps the GPU's clocks.",
        because=None if is_hard else "this is normal at full load, but not far below the limit",
        evidence=case.evidence(*_HARD, *_SOFT),
        fixes=(
            Fix(
                text=(
                    "compare power draw, limit and temperatures under load; clean the fans,"
                    " check the power cables, and reset a lowered power limit to its "
                    "default"
                ),
                commands=("nvidia-smi -q -d POWER,TEMPERATURE,PERFORMANCE",),
                where="host",
            ),
        ),
        confirm=("nvidia-smi -q -d PERFORMANCE,POWER,TEMPERATURE",),
    )


def _in_facts(machine: Machine) -> Facts:
    """NVML names heat or the power supply."""
    hard = {"hardware-slowdown", "thermal-slowdown", "hardware-thermal-slowdown", "power-brake"}
    return tuple(
        one
        for gpu in machine.gpus
        for reason in gpu.throttle_reasons or ()
        if reason in hard
        for one in fact(f"GPU {gpu.index}: {reason}", "NVML")
    )


RULE = Rule(
    check=check,
    fact_checks=(FactCheck(sign="throttled-by-hardware", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "throttled-by-hardware",
            "HW Slowdown",
            "HW Power Brake",
            "HW_SLOWDOWN",
            "HW_POWER_BRAKE",
            pattern=r"HW[ _](?:Slowdown|Power[ _]Brake(?:[ _]Slowdown)?)\s*[:=]\s*"
            r"(?:Active|True|1)\b"
            r"|because of .{0,40}HW[ _](?:Slowdown|Power[ _]Brake)",
        ),
        signature(
            "throttled-by-heat",
            "Thermal Slowdown",
            "THERMAL_SLOWDOWN",
            pattern=r"[HS]W[ _]Thermal[ _]Slowdown\s*[:=]\s*(?:Active|True|1)\b",
        ),
        signature(
            "throttled-by-power-cap",
            "SW Power Cap",
            "SW Power Capping",
            "SW_POWER_CAP",
            pattern=r"SW[ _]Power[ _]Cap(?:ping)?\s*[:=]\s*(?:Active|True|1)\b",
        ),
        signature(
            "throttle-bits-hard",
            "throttle reasons",
            "throttle_reasons",
            "clocks_event_reasons",
            "event reasons",
            pattern=r"(?:throttle|event)[ _]reasons?.{0,60}\n?0x0*[\da-f]{0,4}(?:[89a-f][\da-f]"
            r"|[2367abef][\da-f]|[89a-f])\b",
            lines=2,
        ),
        signature(
            "throttle-bits-soft",
            "throttle reasons",
            "throttle_reasons",
            "clocks_event_reasons",
            "event reasons",
            pattern=r"(?:throttle|event)[ _]reasons?.{0,60}\n?0x0*4\b",
            lines=2,
        ),
        signature(
            "throttle-told",
            "throttling",
            "throttled",
            "throttle",
            "PerfCap",
            pattern=r"\bgpu.{0,60}(?:thermal(?:ly)? (?:throttl|slowdown)|throttl\w+ (?:due to|by"
            r"|because of) (?:heat|power|temperature|thermal|high temp))"
            r"|thermal throttling.{0,40}\bgpu"
            r"|DCGM_FR_CLOCK(?:_THROTTLE|S_EVENT)_(?:POWER|THERMAL)"
            r"|PerfCap Reason:? (?:Thrm|Pwr|Thermal|Power)|clocks? throttl\w+ .{0,40}"
            r"(?:power|thermal)",
        ),
    ),
)
