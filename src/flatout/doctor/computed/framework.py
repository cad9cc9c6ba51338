"""Frameworks: their builds, and the libraries they find, against this machine."""

from __future__ import annotations

from flatout.doctor.fact_check import Facts, fact, unmet, version
from flatout.doctor.rule import Case, RuleVerdict
from flatout.schema.finding import Certainty
from flatout.schema.machine import Machine

# The newest TensorFlow version with this CUDA, from its table of tested configurations.
_TENSORFLOW_CUDA = (
    ((1, 12), "9.0"), ((2, 0), "10.0"), ((2, 3), "10.1"), ((2, 4), "11.0"), ((2, 11), "11.2"),
    ((2, 14), "11.8"), ((2, 15), "12.2"), ((2, 17), "12.3"), ((2, 21), "12.5"),
)  # fmt: skip


def arch_is_missing(case: Case) -> RuleVerdict | None:
    """The build has no code for the card, and its generation's code does not run either."""
    refused = case.signs["arch-refused"]
    is_invalid = case.sees("invalid-device-function")
    if not refused and not is_invalid or _is_served_by_its_generation(case):
        return None
    # TensorFlow then compiles at first start, which is slow but usually works.
    lines = [sign.text for sign in refused if sign.where is None]
    is_compiled = bool(lines) and all("jit-compiled from PTX" in text for text in lines)
    if is_compiled and not is_invalid and not case.sees("handle-refused"):
        return RuleVerdict(certainty="possible", severity="warning")
    return RuleVerdict(certainty=case.certainty("arch-refused"))


def _is_served_by_its_generation(case: Case) -> bool:
    """Whether torch only warns about a minor version: code for 12.0 runs on 12.1."""
    newer = [sign.values for sign in case.signs["capability-range"]]
    others = [
        one
        for one in case.signs["arch-refused"]
        if one.where is None and "capability supported by this" not in one.text.lower()
    ]
    return (
        bool(newer)
        and all(
            one["major"] == one["top"] and int(one["minor"]) > int(one["last"]) for one in newer
        )
        and not others
        and not case.sees("invalid-device-function")
    )


def label_is_out_of_range(case: Case) -> RuleVerdict | None:
    """An assertion about an index failed, or calls fail as they do after one."""
    late = ("index-assertion", "device-assert", "cublas-not-started")
    certainty: Certainty = "possible"
    if case.sees("index-assertion", "index-error"):
        certainty = "decided"
    elif case.sees("device-assert"):
        certainty = "likely"
    elif not case.sees("cublas-not-started"):
        return None
    # The CPU reports the faulty line directly.
    return RuleVerdict(certainty=certainty, confirm=None if case.sees(*late) else ())


def numpy_refused(case: Case) -> RuleVerdict | None:
    """A module built for another NumPy was refused; possible if there are only warnings."""
    lines = [sign.text for sign in case.signs["numpy-refused"]]
    if not lines:
        return None
    # Cython only warns if NumPy's structures grew, which is harmless, and raises if they shrank.
    if all("RuntimeWarning" in text for text in lines):
        return RuleVerdict(certainty="possible", severity="note")
    return RuleVerdict(certainty="decided")


def tensorflow_finds_no_cuda(case: Case) -> RuleVerdict | None:
    """A library was not opened; or no GPU is listed, and the installed CUDA version differs."""
    is_explicit = case.sees("tf-library-unopened", "tf-libraries-missing", "tf-runtime-unloaded")
    wanted = _other_cuda(case)
    if not is_explicit and not case.sees("tf-no-cuda-drivers") and wanted is None:
        return None
    has_gpu = is_explicit or case.machine.gpus or case.machine.driver
    return RuleVerdict(
        certainty="decided" if is_explicit else "likely",
        severity=None if has_gpu else "note",
        because=f"this TensorFlow was built for CUDA {wanted}" if wanted else None,
    )


def _other_cuda(case: Case) -> str | None:
    """The CUDA version that TensorFlow needs, if another one is installed and no GPU is listed."""
    tensorflow = case.machine.framework("tensorflow")
    installed = case.value("toolkit-version", "version")
    if not tensorflow or not installed or not case.sees("tf-no-gpu-listed"):
        return None
    ours = version(tensorflow.version)[:2]
    wanted = next((cuda for newest, cuda in _TENSORFLOW_CUDA if ours and ours <= newest), None)
    return wanted if wanted != installed else None


def tensorflow_is_for_cpu_on_windows(case: Case) -> RuleVerdict | None:
    """TensorFlow reports it; or a new TensorFlow on Windows lists no GPU."""
    found = case.machine.framework("tensorflow")
    is_new = case.sees("tf-version-new")
    if found is not None:
        is_new = version(found.version) >= (2, 11)
    is_windows = case.machine.host.os == "windows" or case.sees("tf-windows-package")
    is_seen = is_windows and is_new and case.sees("tf-no-gpu-listed") and not case.is_wsl
    if not is_seen and not case.sees("tf-windows-unsupported"):
        return None
    return RuleVerdict(certainty="decided")


def other_cuda_is_found_first(machine: Machine) -> Facts:
    """LD_LIBRARY_PATH holds CUDA libraries of other versions than the environment's wheels."""
    passed = ("libcuda", "libnvidia-ml", "libcudnn")
    wheels = {one.name: one for one in machine.libraries or () if one.found_by == "wheel"}
    shadowing = [
        one
        for one in machine.libraries or ()
        if one.found_by == "LD_LIBRARY_PATH" and one.name in wheels and one.name not in passed
        and one.version != wheels[one.name].version
    ]  # fmt: skip
    return tuple(
        evidence
        for one in shadowing[:3]
        for evidence in fact(
            f"{one.name} {one.version} found before the environment's {wheels[one.name].version}",
            "LD_LIBRARY_PATH",
        )
    )


def other_cudnn_is_found_first(machine: Machine) -> Facts:
    """LD_LIBRARY_PATH holds a cuDNN that the loader prefers to the wheel's."""
    found = {
        one.found_by: one for one in reversed(machine.libraries or ()) if one.name == "libcudnn"
    }
    listed, wheel = found.get("LD_LIBRARY_PATH"), found.get("wheel")
    if listed is None or wheel is None or listed.version == wheel.version:
        return ()
    return (
        *fact(f"cuDNN {listed.version} at {listed.path}", "LD_LIBRARY_PATH"),
        *fact(f"cuDNN {wheel.version} of the environment", "site-packages"),
    )


def glibc_is_too_old_for_torch(machine: Machine) -> Facts:
    """A glibc older than 2.28, which torch's wheels need.

    Source: the tags of torch's wheels, manylinux_2_28.
    """
    glibc = machine.host.glibc
    if not version(glibc) or version(glibc) >= (2, 28):
        return ()
    return fact(f"glibc {glibc}; torch's wheels need 2.28", "confstr")


def build_fits_no_card(machine: Machine) -> Facts:
    """A framework's build supports no card of this machine."""
    if not machine.gpus or not machine.frameworks:
        return ()
    # Imported only if there is a build to check: the tables are slow to load.
    from flatout.doctor.installed_build import why_no_card_fits

    for one in machine.frameworks:
        why = why_no_card_fits(one, machine)
        if why is not None:
            card = machine.gpus[0]
            capability = card.compute_capability
            name = card.name or "GPU"
            return (
                *fact(f"{name}, compute capability {capability}" if capability else name, "NVML"),
                *fact(f"{one.name} {one.version} ({one.build}): {why}", "metadata"),
            )
    return ()


def jax_has_no_cuda_plugin(machine: Machine) -> Facts:
    """JAX has no CUDA plugin, although there is a GPU."""
    jax = machine.framework("jax")
    if jax is None or jax.build != "cpu" or not machine.gpus or machine.host.os == "windows":
        return ()
    return (*fact(f"jax {jax.version} without a CUDA plugin", "metadata"), *_first_card(machine))


def jax_packages_conflict(machine: Machine) -> Facts:
    """Two CUDA plugins of JAX, or packages that need other versions of each other."""
    first = next(iter(machine.environments or ()), None)
    plugins = [one for one in (first.frameworks if first else ()) if "plugin" in one.name]
    names = {"jax", "jaxlib", "jax-cuda12-plugin", "jax-cuda13-plugin"}
    both = fact(" and ".join(one.name for one in plugins), "metadata") if len(plugins) > 1 else ()
    return (*both, *unmet(machine, names))


def numpy_is_newer_than_framework(machine: Machine) -> Facts:
    """A torch or TensorFlow that was built before NumPy 2, with NumPy 2.

    Source: release notes of torch 2.3 and TensorFlow 2.18.
    """
    first = next(iter(machine.environments or ()), None)
    held = {one.name: one for one in (first.frameworks if first else ())}
    numpy = held.get("numpy")
    if numpy is None or version(numpy.version) < (2,):
        return ()
    old = [
        held[name]
        for name, built in (("torch", (2, 3)), ("tensorflow", (2, 18)))
        if name in held and version(held[name].version) < built
    ]
    if not old:
        return ()
    return (
        *fact(f"numpy {numpy.version}", "metadata"),
        *fact(f"{old[0].name} {old[0].version} was built for NumPy 1", "metadata"),
    )


def paddle_is_a_cpu_build(machine: Machine) -> Facts:
    """The installed Paddle is a CPU build, although there is a GPU."""
    return _is_a_cpu_build(machine, "paddlepaddle")


def torch_is_a_cpu_build(machine: Machine) -> Facts:
    """The installed torch is a CPU build, although there is a GPU."""
    return _is_a_cpu_build(machine, "torch")


def _is_a_cpu_build(machine: Machine, name: str) -> Facts:
    found = machine.framework(name)
    if found is None or found.build != "cpu" or not machine.gpus:
        return ()
    text = f"{name} {found.version} is built for the CPU"
    return (*fact(text, "metadata"), *_first_card(machine))


def new_tensorflow_on_windows(machine: Machine) -> Facts:
    """A TensorFlow newer than 2.10 on Windows with a GPU."""
    found = machine.framework("tensorflow")
    if machine.host.os != "windows" or found is None or not machine.gpus:
        return ()
    if version(found.version) < (2, 11):
        return ()
    return (*fact(f"tensorflow {found.version}", "metadata"), *_first_card(machine))


def _first_card(machine: Machine) -> Facts:
    return fact(machine.gpus[0].name or "a GPU", "NVML")


def torchaudio_needs_another_torch(machine: Machine) -> Facts:
    """The installed torchaudio requires another version of torch."""
    return unmet(machine, {"torch"}, {"torchaudio"})


def torchvision_needs_another_torch(machine: Machine) -> Facts:
    """The installed torchvision requires another version of torch."""
    return unmet(machine, {"torch"}, {"torchvision"})


def another_triton_is_needed(machine: Machine) -> Facts:
    """A package requires another version of Triton."""
    return unmet(machine, {"triton", "pytorch-triton", "triton-windows"})
