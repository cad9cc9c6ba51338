"""A compiled extension was built for another torch version.

**Checks.** torch symbols that an extension cannot find, and version errors of xformers,
torch_scatter, DeepSpeed and pybind11.

**Why it matters.** C++ extensions such as flash-attn, xformers, mmcv or vLLM work with only one
version of torch, one CUDA version and one C++ ABI.

**Example.** `flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol:
_ZN3c105ErrorC2E...`

**Fix.** Install the extension's wheel for this torch, CUDA, Python and ABI, or build it here; asks
first.

**Source.** Dao-AILab/flash-attention#1644, #853; docs.pytorch.org/cppdocs, C++ ABI.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = (
    "torch-symbol-missing",
    "extension-needs-other-cuda",
)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="extension-abi-mismatch",
        severity="error",
        problem="A compiled extension was built for another torch version.",
        because="the symbol belongs to another version of torch",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "install the extension built for this torch, or build it against "
                    "the installed one"
                ),
                safety="ask",
                commands=(
                    (
                        "pip install --no-build-isolation --no-binary :all: "
                        "--force-reinstall --no-deps <extension>"
                    ),
                ),
                changes="replaces the extension in its environment",
            ),
        ),
        confirm=(
            (
                'python -c "import torch; print(torch.__version__, '
                'torch.version.cuda, torch.compiled_with_cxx11_abi())"'
            ),
            "pip list",
        ),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "torch-symbol-missing",
            "undefined symbol",
            "symbol not found",
            "WinError 127",
            "specified procedure could not be found",
            "xFormers was built for",
            "load C++/CUDA extensions",
            "compiled with different CUDA versions",
            "module was compiled for Python",
            "ABI version mismatch",
            "Symbol not found",
            pattern=r"(?:undefined symbol|"
            r"[Ss]ymbol not found):? ?(?:in flat namespace"
            r" )?'?_{0,2}Z\w{0,24}?(?:3c10|2at|5torch|6caffe2|8pybind11|"
            r"10tensorflow|N4vllm)|undefined symbol: ?(?:THP\w+|THC\w+|"
            r"aoti_torch\w*|PyThreadState\w*|_Py\w+|Py[A-Z]\w+|torch_\w+)|"
            r"WinError 127\]|"
            r"DLL load failed while importing \w+: The specified procedure|"
            r"xFormers was built for|load C\+\+/CUDA extensions|"
            r"compiled with different CUDA versions|"
            r"module was compiled for Python \d|ABI version mismatch",
        ),
        signature(
            "extension-needs-other-cuda",
            "flash_attn",
            "flash_attn_cuda",
            "flash_attn_2_cuda",
            "_C",
            "mmcv",
            "vllm",
            "xformers",
            "apex",
            "deepspeed",
            "_ext",
            "libc10.so",
            "libtorch_cpu.so",
            "libtorch_cuda.so",
            "libc10_cuda.so",
            "libtorch.so",
            pattern=r"^(?=.{0,300}(?:flash_attn|_C\b|mmcv|vllm|xformers|apex|deepspeed|"
            r"_cuda\b|"
            r"_ext\b))[^\n]{0,400}\n?[^\n]{0,40}libcudart\.so\.[\d.]+: cannot open|"
            r"lib(?:c10|torch)\w{0,12}\.so: cannot open|"
            r"libtorch\w{0,12}\.so: version \S{1,40} not found|"
            r"libc10_cuda\.so: undefined symbol",
            lines=3,
        ),
    ),
)
