"""TensorFlow cannot find the CUDA or cuDNN libraries it was built for.

**Checks.** Libraries that TensorFlow could not open, on Linux and Windows, and the installed CUDA
against the one this TensorFlow was built for. TensorRT's libraries are optional.

**Why it matters.** Each TensorFlow release loads the libraries of one CUDA and cuDNN version by
name. Without them it falls back to the CPU.

**Example.** `Could not load dynamic library 'libcudnn.so.8'; dlerror: libcudnn.so.8: cannot open
shared object file`

**Fix.** `pip install 'tensorflow[and-cuda]'` installs them; asks first. Before 2.14, install the
versions in TensorFlow's table.

**Source.** tensorflow.org/install/source, tested configurations; tensorflow/tensorflow#42199.
"""

from __future__ import annotations

from flatout.doctor.rule import Case, Rule
from flatout.doctor.signature import signature
from flatout.schema.finding import Certainty, Finding, Fix

_EXPLICIT = ("tf-library-unopened", "tf-libraries-missing", "tf-runtime-unloaded")
# The newest TensorFlow version with this CUDA, from its table of tested configurations.
_BUILT_FOR = (
    ((1, 12), "9.0"), ((2, 0), "10.0"), ((2, 3), "10.1"), ((2, 4), "11.0"), ((2, 11), "11.2"),
    ((2, 14), "11.8"), ((2, 15), "12.2"), ((2, 17), "12.3"), ((2, 21), "12.5"),
)  # fmt: skip


def check(case: Case) -> Finding | None:
    """A library was not opened; or no GPU is listed, and the installed CUDA version differs."""
    is_stub = case.sees("tf-no-cuda-drivers")
    wanted = _other_cuda(case)
    if not case.sees(*_EXPLICIT) and not is_stub and wanted is None:
        return None
    certainty: Certainty = "decided" if case.sees(*_EXPLICIT) else "likely"
    has_gpu = bool(case.machine.gpus or case.machine.driver) or case.sees(*_EXPLICIT)
    return Finding(
        rule="tf-cuda-libraries-not-found",
        severity="error" if has_gpu else "note",
        certainty=certainty,
        problem="TensorFlow cannot find the CUDA libraries it was built for.",
        because=f"this TensorFlow was built for CUDA {wanted}" if wanted else None,
        evidence=case.evidence(
            *_EXPLICIT, "tf-no-cuda-drivers", "tensorflow-version", "toolkit-version"
        ),
        fixes=(
            Fix(
                text="install TensorFlow together with its CUDA libraries",
                safety="ask",
                commands=("pip install 'tensorflow[and-cuda]'",),
                changes="replaces TensorFlow in this environment",
            ),
        ),
        confirm=('python -c "import tensorflow as tf; print(tf.sysconfig.get_build_info())"',),
    )


def _other_cuda(case: Case) -> str | None:
    """The CUDA version that TensorFlow needs, if another one is installed and no GPU is listed."""
    tensorflow = case.machine.framework("tensorflow")
    installed = case.value("toolkit-version", "version")
    if not tensorflow or not installed or not case.sees("tf-no-gpu-listed"):
        return None
    ours = tuple(int(part) for part in tensorflow.version.split(".")[:2])
    wanted = next((cuda for newest, cuda in _BUILT_FOR if ours <= newest), None)
    return wanted if wanted != installed else None


RULE = Rule(
    check=check,
    prior=65,
    signatures=(
        signature(
            "tf-library-unopened",
            "Could not load dynamic library",
            "TensorFlow requires that this DLL",
            pattern=r"dynamic library '(?!(?:lib)?(?:nvinfer|cuda\.|nvcuda))\w[\w.-]*'"
            r"|Could not find '\w+\.dll'. TensorFlow requires",
        ),
        signature("tf-libraries-missing", "Cannot dlopen some GPU libraries"),
        signature(
            "tf-runtime-unloaded",
            "libcublas.so",
            "libcudart.so",
            "libcudnn.so",
            "libcusolver.so",
            pattern=r"lib(?:cublas|cudart|cudnn|cusolver)\.so[\d.]{0,6}: cannot open"
            r"(?:[^\n]*\n){1,8}[^\n]{0,80}native TensorFlow runtime",
            lines=10,
        ),
        # From TensorFlow's stub of the CUDA runtime: libcudart is missing, not the driver.
        signature("tf-no-cuda-drivers", "Could not find cuda drivers on your machine"),
        signature(
            "toolkit-version",
            "Cuda compilation tools",
            "CUDA",
            pattern=r"(?:Cuda compilation tools, release |\bCUDA[ _v:]{1,2})"
            r"(?P<version>\d+\.\d+)",
        ),
    ),
    explains=(
        "cuda-runtime-library-missing",
        "cudnn-library-missing",
    ),
)
