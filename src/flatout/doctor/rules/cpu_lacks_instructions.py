"""The processor lacks instructions that a library was built for.

**Checks.** Programs ended by an illegal instruction, and libraries that name what they miss. On the
machine: a processor without AVX beside TensorFlow or JAX, which are built for it.

**Why it matters.** Wheels of TensorFlow, and of many others, need AVX or AVX2. Old processors, some
Pentium, Celeron and Atom, and virtual machines with a generic CPU model have none.

**Example.** `Illegal instruction (core dumped)`

**Fix.** In a virtual machine pass the host's CPU model through; otherwise a build for this
processor, as conda-forge has them; by hand.

**Source.** https://www.tensorflow.org/install/pip (hardware requirements);
https://github.com/tensorflow/tensorflow/issues/17411
"""

from __future__ import annotations

from flatout.doctor.reading import Facts, Reading, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.nouns.finding import Finding, Fix
from flatout.nouns.machine import Machine


def check(case: Case) -> Finding | None:
    """A library names instructions that are not there, or the kernel ended a program for one."""
    is_told = case.sees("instructions-missing")
    if not is_told and not case.sees("illegal-instruction"):
        return None
    return Finding(
        rule="cpu-lacks-instructions",
        severity="error",
        certainty="decided" if is_told else "likely",
        problem="The processor lacks instructions that a library was built for.",
        because="mostly AVX or AVX2, on an old processor or a virtual machine's generic one",
        evidence=case.evidence("instructions-missing", "illegal-instruction"),
        fixes=(
            Fix(
                text="in a virtual machine pass the host's CPU model through (QEMU: `-cpu host`); "
                "otherwise install builds for this processor, as conda-forge has them",
                where="host",
            ),
        ),
        confirm=("grep -m1 -o -w -E 'avx|avx2|avx512f' /proc/cpuinfo | sort -u",),
    )


def _in_facts(machine: Machine) -> Facts:
    """No AVX, beside frameworks whose wheels ask for it."""
    features = machine.cpu.features
    needing = [one for one in machine.frameworks if one.name in ("tensorflow", "jax")]
    if "sse4_2" not in features or "avx" in features or not needing:
        return ()
    return (
        *fact("the processor has no AVX", "/proc/cpuinfo"),
        *fact(f"{needing[0].name} {needing[0].version} is built for it", "metadata"),
    )


RULE = Rule(
    check=check,
    readings=(Reading(sign="instructions-missing", read=_in_facts),),
    signatures=(
        signature(
            "instructions-missing",
            "compiled to use",
            "CPU does not support",
            "requires AVX",
            "AVX",
            pattern=r"compiled to use \S{1,10} instructions, but these aren't available"
            r"|CPU (?:does not|doesn't) support (?:the )?(?:AVX|SSE|x86-64-v)"
            r"|(?:requires?|needs?) (?:a CPU with )?AVX2?\b.{0,40}(?:not|support)"
            r"|this version .{0,40}requires AVX",
        ),
        signature(
            "illegal-instruction",
            "Illegal instruction",
            "SIGILL",
            "invalid opcode",
            "c000001d",
            pattern=r"Illegal instruction|signal SIGILL|SIGILL\b|trap invalid opcode|0xc000001d",
        ),
    ),
)
