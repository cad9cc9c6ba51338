"""The processor lacks instructions that a library was compiled for.

**Checks.** Programs killed by an illegal instruction, and libraries that name the missing
instructions. On the machine: a processor without AVX, with TensorFlow or JAX installed, which need
it.

**Why it matters.** The wheels of TensorFlow and many other packages need AVX or AVX2. Old
processors, some Pentium, Celeron and Atom models, and virtual machines with a generic CPU model
lack them.

**Example.** `Illegal instruction (core dumped)`

**Fix.** In a virtual machine, pass the host's CPU model through; otherwise use a build for this
processor, for example from conda-forge; by hand.

**Source.** https://www.tensorflow.org/install/pip (hardware requirements);
https://github.com/tensorflow/tensorflow/issues/17411
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine


def check(case: Case) -> Finding | None:
    """A library names missing instructions, or the kernel killed a program for using one."""
    is_explicit = case.sees("instructions-missing")
    if not is_explicit and not case.sees("illegal-instruction"):
        return None
    return Finding(
        rule="cpu-lacks-instructions",
        severity="error",
        certainty="decided" if is_explicit else "likely",
        problem="The processor lacks instructions that a library was compiled for.",
        because="usually AVX or AVX2, on an old processor or a virtual machine's generic CPU",
        evidence=case.evidence("instructions-missing", "illegal-instruction"),
        fixes=(
            Fix(
                text=(
                    "in a virtual machine, pass the host's CPU model through (QEMU: `-cpu "
                    "host`); otherwise install builds for this processor, for example from "
                    "conda-forge"
                ),
                where="host",
            ),
        ),
        confirm=("grep -m1 -o -w -E 'avx|avx2|avx512f' /proc/cpuinfo | sort -u",),
    )


def _in_facts(machine: Machine) -> Facts:
    """No AVX, although installed frameworks need it."""
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
    fact_checks=(FactCheck(sign="instructions-missing", read=_in_facts),),
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
