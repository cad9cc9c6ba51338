"""Facts and verdicts about containers, their engines and NVIDIA's toolkit."""

from __future__ import annotations

from flatout.doctor.fact_check import Facts, fact, version
from flatout.doctor.rule import Case, RuleVerdict
from flatout.schema.finding import Evidence
from flatout.schema.machine import Machine


def cdi_for_other_driver(machine: Machine) -> Facts:
    """The CDI specification names the files of another driver."""
    if machine.host.wsl or machine.driver is None:
        return ()
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.cdi_driver and engine.cdi_driver != machine.driver
        for one in (
            *fact(f"CDI specification for driver {engine.cdi_driver}", "/etc/cdi, /var/run/cdi"),
            *fact(f"driver {machine.driver}", "NVML"),
        )
    )[:2]


def needs_newer_driver(case: Case) -> RuleVerdict | None:
    """The toolkit or the image says so."""
    if not case.sees("requirement-unsatisfied", "image-wants-driver"):
        return None
    needed = case.value("requirement-unsatisfied", "cuda")
    because = f"the image needs CUDA {needed}" if needed else None
    if because and case.machine.cuda:
        because += f"; the driver supports up to {case.machine.cuda}"
    return RuleVerdict(certainty="decided", because=because)


def container_without_gpu(machine: Machine) -> Facts:
    """The kernel has the driver, but the container sees no GPU."""
    module = machine.module
    if machine.host.container is None or machine.gpus or module is None or not module.loaded:
        return ()
    return (
        *fact(f"the kernel has the NVIDIA driver {module.loaded}", "/proc/driver/nvidia/version"),
        *fact("no GPU in this container", "NVML"),
    )


def compat_libcuda_first(machine: Machine) -> Facts:
    """The loader finds the compatibility package's libcuda first, on a GeForce."""
    first = next((one for one in machine.libraries or () if one.name == "libcuda"), None)
    names = [gpu.name or "" for gpu in machine.gpus]
    if first is None or "/compat" not in first.path or not any("GeForce" in name for name in names):
        return ()
    return (
        *fact(f"the loader finds {first.path} first", first.found_by or "ldconfig"),
        *fact(names[0], "NVML"),
    )


def stub_libcuda_first(machine: Machine) -> Facts:
    """The loader finds a stub of libcuda first."""
    first = next((one for one in machine.libraries or () if one.name == "libcuda"), None)
    if first is None or not first.is_stub:
        return ()
    return fact(f"the loader finds {first.path} first", first.found_by or "ldconfig")


def docker_does_not_answer(machine: Machine) -> Facts:
    """Docker is installed, but its daemon does not answer."""
    return tuple(
        Evidence(text="Docker's daemon does not answer", where="docker info")
        for engine in machine.engines or ()
        if engine.name != "podman" and engine.is_running is False
    )


def docker_is_snap(machine: Machine) -> Facts:
    """Docker is a snap, on a machine with a GPU."""
    if not machine.gpus:
        return ()
    return tuple(
        Evidence(text="Docker is under /snap", where="docker info")
        for engine in machine.engines or ()
        if engine.name == "docker" and engine.is_snap
    )


def docker_without_nvidia_runtime(machine: Machine) -> Facts:
    """The toolkit is installed, but Docker does not know it."""
    if not machine.gpus:
        return ()
    return tuple(
        Evidence(
            text=f"toolkit {engine.toolkit}; runtimes: {', '.join(engine.runtimes)}",
            where="docker info",
        )
        for engine in machine.engines or ()
        if engine.name == "docker"
        and engine.toolkit
        and engine.runtimes is not None
        and "nvidia" not in engine.runtimes
        and not engine.cdi_devices
    )


def toolkit_not_installed(machine: Machine) -> Facts:
    """A GPU and a running Docker, without the toolkit."""
    if not machine.gpus or machine.host.container:
        return ()
    return tuple(
        Evidence(
            text=f"Docker {engine.version} is running, nvidia-ctk is not installed", where="PATH"
        )
        for engine in machine.engines or ()
        if engine.name == "docker"
        and engine.is_running
        and engine.is_permitted
        and engine.toolkit is None
        and "nvidia" not in (engine.runtimes or ())
        and not engine.cdi_devices
    )


def docker_refuses_user(machine: Machine) -> Facts:
    """Docker's daemon runs, but denies access to this user."""
    return tuple(
        Evidence(text="permission denied", where="docker info")
        for engine in machine.engines or ()
        if engine.name != "podman" and engine.is_permitted is False
    )


def docker_before_gpus_option(machine: Machine) -> Facts:
    """A GPU, and a Docker before 19.03, which added `--gpus`."""
    if not machine.gpus:
        return ()
    return tuple(
        Evidence(text=f"Docker {engine.version}; --gpus needs 19.03", where="docker info")
        for engine in machine.engines or ()
        if engine.name == "docker" and () < version(engine.version) < (19, 3)
    )


def driver_packages_in_image(machine: Machine) -> Facts:
    """The driver's packages are installed inside the container."""
    packages = machine.module.packages if machine.module else None
    if machine.host.container is None or not packages:
        return ()
    return fact(f"in the image: {', '.join(packages[:3])}", "dpkg")


def no_cgroups_as_root(machine: Machine) -> Facts:
    """`no-cgroups` is set, which is for rootless engines, but Docker runs as root."""
    return tuple(
        one
        for engine in machine.engines or ()
        if engine.name == "docker" and engine.no_cgroups and engine.is_rootless is False
        for one in (
            *fact("no-cgroups = true", "/etc/nvidia-container-runtime/config.toml"),
            *fact("Docker is not rootless", "docker info"),
        )
    )
