"""The installed Paddle is a CPU-only build.

**Checks.** Paddle's errors when a GPU is requested. On the machine: a CPU build, although there is
a GPU.

**Why it matters.** `pip install paddlepaddle` installs the CPU build; GPU builds are in Paddle's
own index.

**Example.** `PaddlePaddle is not compiled with CUDA`

**Fix.** Install paddlepaddle-gpu from its index; asks first.

**Source.** www.paddlepaddle.org.cn/install/quick.
"""

from __future__ import annotations

from flatout.doctor.fact_check import FactCheck, Facts, fact
from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix
from flatout.schema.machine import Machine

_SIGNS = ("paddle-without-cuda",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="paddle-cpu-only-build",
        severity="error",
        problem="The installed Paddle is a CPU-only build.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text="install the GPU build of Paddle from its own index",
                safety="ask",
                commands=(
                    "pip uninstall paddlepaddle",
                    (
                        "pip install paddlepaddle-gpu -i "
                        "https://www.paddlepaddle.org.cn/packages/stable/cu126/"
                    ),
                ),
                changes="replaces Paddle in this environment",
            ),
        ),
        confirm=('python -c "import paddle; print(paddle.is_compiled_with_cuda())"',),
    )


def _in_facts(machine: Machine) -> Facts:
    """Paddle is a CPU build, although there is a GPU."""
    paddle = machine.framework("paddlepaddle")
    if paddle is None or paddle.build != "cpu" or not machine.gpus:
        return ()
    return (
        *fact(f"paddlepaddle {paddle.version} is built for the CPU", "metadata"),
        *fact(machine.gpus[0].name or "a GPU", "NVML"),
    )


RULE = Rule(
    check=check,
    prior=60,
    fact_checks=(FactCheck(sign="paddle-without-cuda", read=_in_facts, severity="warning"),),
    signatures=(
        signature(
            "paddle-without-cuda",
            "paddle",
            "PaddlePaddle",
            "CUDAPlace",
            pattern=r"Paddle\w* (?:is|was|version)? ?not (?:be )?(?:compiled|"
            r"been compiled) with (?:CUDA|GPU)|installed CPU version PaddlePaddle|"
            r"Cannot use (?:GPU|CUDAPlace).{0,60}(?:CPU|not compiled)|"
            r"not compiled with CUDA.{0,60}paddle",
        ),
    ),
    explains=("torch-cpu-only-build",),
)
