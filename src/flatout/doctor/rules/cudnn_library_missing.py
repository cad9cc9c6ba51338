"""A program without its own cuDNN cannot find one.

**Checks.** Messages of CTranslate2, ONNX Runtime and cuDNN itself about parts of cuDNN that were
not found.

**Why it matters.** torch's cuDNN is inside its package, where other programs do not look. cuDNN 8
and 9 use different file names.

**Example.** `Unable to load any of {libcudnn_ops.so.9.1.0, libcudnn_ops.so.9.1,
libcudnn_ops.so.9, libcudnn_ops.so}`

**Fix.** Install the cuDNN package and add its folder to LD_LIBRARY_PATH; asks first.

**Source.** SYSTRAN/faster-whisper#1182; OpenNMT/CTranslate2#1826.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Finding, Fix

_SIGNS = ("cudnn-part-missing",)


def check(case: Case) -> Finding | None:
    """One of the messages was printed."""
    if not case.sees(*_SIGNS):
        return None
    return Finding(
        rule="cudnn-library-missing",
        severity="error",
        problem="A program without its own cuDNN cannot find one.",
        evidence=case.evidence(*_SIGNS),
        fixes=(
            Fix(
                text=(
                    "install the requested cuDNN version, and add its folder to the loader's path"
                ),
                safety="ask",
                commands=(
                    "pip install nvidia-cudnn-cu12",
                    (
                        "export LD_LIBRARY_PATH=$(python -c 'import nvidia.cudnn; "
                        "print(nvidia.cudnn.__path__[0])')/lib"
                    ),
                ),
                changes="adds a package to this environment; only this shell finds it",
                undo="pip uninstall nvidia-cudnn-cu12",
            ),
        ),
        confirm=(
            "ldconfig -p | grep cudnn",
            "pip list | grep -i cudnn",
        ),
    )


RULE = Rule(
    check=check,
    prior=55,
    signatures=(
        signature(
            "cudnn-part-missing",
            "Unable to load any of",
            "Could not locate cudnn",
            "Could not load library cudnn",
            "Could not load library libcudnn",
            "Cannot load symbol cudnn",
            "libcudnn.so",
            "cudnn64",
            pattern=r"Unable to load any of \{?lib(?:cudnn)|Could not locate cudnn|"
            r"Could not load library (?:lib)?cudnn\w{0,30}(?:\.so\.\d+|"
            r"\.dll)\.? Error:? (?:code )?(?:126|libcudnn|libz|libcublas)|"
            r"Cannot load symbol cudnn|^(?!.*(?:tensorflow|dso_loader|"
            r"Paddle)).*(?:ImportError|"
            r"OSError).{0,20}libcudnn\w{0,20}\.so\.\d+: cannot open",
        ),
    ),
)
