"""The driver and its kernel module: facts, and verdicts that compare versions."""

from __future__ import annotations

from flatout.doctor.fact_check import Facts, fact, version
from flatout.doctor.rule import Case, RuleVerdict
from flatout.schema.finding import Certainty, Fix
from flatout.schema.machine import Machine


def module_differs_from_libraries(machine: Machine) -> Facts:
    """The loaded module and the driver's libraries have different versions."""
    module = machine.module
    if module is None or not module.loaded or not module.user_space:
        return ()
    if module.loaded == module.user_space:
        return ()
    return (
        *fact(f"kernel module {module.loaded}", "/proc/driver/nvidia/version"),
        *fact(f"libnvidia-ml {module.user_space}", "its file's name"),
    )


def framework_needs_newer_driver(machine: Machine) -> Facts:
    """A framework's CUDA needs a newer driver than the installed one."""
    if not machine.driver or not machine.frameworks:
        return ()
    # Imported only if there is a build to check: the tables are slow to load.
    from flatout.doctor.installed_build import oldest_driver

    # NVIDIA's compatibility package runs a newer CUDA on older data center drivers.
    if any("/compat" in one.path for one in machine.libraries or ()):
        return ()
    for one in machine.frameworks:
        oldest = oldest_driver(one, machine)
        if oldest and version(machine.driver) < version(oldest):
            return (
                *fact(f"driver {machine.driver}", "NVML"),
                *fact(f"{one.name} {one.version} ({one.build}) needs {oldest}", "metadata"),
            )
    return ()


def driver_too_old_verdict(case: Case) -> RuleVerdict | None:
    """The framework reports it, or the printed versions are incompatible."""
    is_older = _is_older_major(
        case.value("driver-and-runtime", "driver"), case.value("driver-and-runtime", "runtime")
    )
    is_told = case.sees("driver-too-old")
    if not is_told and not is_older and not case.sees("cuda-driver-insufficient", "ptx-toolchain"):
        return None
    # CUDA also says "insufficient" if there is no driver at all.
    is_sure = is_told or is_older or case.machine.driver is not None or not case.is_container
    found = case.value("driver-too-old", "found")
    cuda = f"{int(found) // 1000}.{int(found) % 1000 // 10}" if found else case.machine.cuda
    return RuleVerdict(
        certainty="decided" if is_sure else "likely",
        because=f"the driver supports CUDA up to {cuda}" if cuda else None,
    )


def _is_older_major(driver: str | None, runtime: str | None) -> bool:
    """Whether the driver's CUDA is of an older major version; before 11, of any older version."""
    if driver is None or runtime is None:
        return False
    ours, theirs = (tuple(map(int, text.split("."))) for text in (driver, runtime))
    return ours < theirs if theirs < (11, 0) else ours[0] < theirs[0]


def fabric_manager_is_not_running(machine: Machine) -> Facts:
    """There is an NVSwitch, but the fabric manager's service is not running."""
    state = machine.module.fabric_manager if machine.module else None
    if state is None or state in ("active", "activating"):
        return ()
    return fact(f"nvidia-fabricmanager: {state}", "systemctl")


def fabric_manager_installed(case: Case) -> Fix:
    """Install and start the fabric manager in exactly the driver's version."""
    driver = case.machine.driver
    package = f"nvidia-fabricmanager-{driver.split('.')[0]}" if driver else "nvidia-fabricmanager"
    return Fix(
        text="install and start the fabric manager in exactly the driver's version",
        safety="ask",
        commands=(
            f"sudo apt-get install {package}",
            "sudo systemctl enable --now nvidia-fabricmanager",
        ),
        where="host",
        changes="adds a service",
        undo="sudo systemctl disable --now nvidia-fabricmanager",
    )


def driver_is_missing(machine: Machine) -> Facts:
    """There is an NVIDIA card on the PCI bus, but neither packages nor a module of its driver."""
    module = machine.module
    if module is None or machine.driver or machine.host.container or not module.pci_devices:
        return ()
    # A card passed through to a virtual machine has another owner.
    if module.loaded or module.is_built or module.packages or module.owner:
        return ()
    return fact(f"NVIDIA device {module.pci_devices[0]}, no driver", "/sys/bus/pci")


def mig_has_no_instance(machine: Machine) -> Facts:
    """MIG is on, but no instance exists."""
    return tuple(
        one
        for gpu in machine.gpus
        if gpu.is_mig_on and gpu.num_mig_instances == 0
        for one in fact(f"GPU {gpu.index}: MIG is on, but no instance exists", "NVML")
    )


def nouveau_is_bound(machine: Machine) -> Facts:
    """nouveau or nova_core is bound to the card on the PCI bus."""
    module = machine.module
    if module is None or module.owner not in ("nouveau", "nova_core", "nova-core"):
        return ()
    return fact(f"{module.owner} is bound to the GPU", "/sys/bus/pci")


def module_is_blacklisted(machine: Machine) -> Facts:
    """There is a card, but modprobe's settings disable the nvidia module, and it is not loaded."""
    module = machine.module
    if module is None or module.loaded or not module.is_blacklisted or not module.pci_devices:
        return ()
    return fact("the nvidia module is disabled", "/etc/modprobe.d")


def kernel_has_no_module(machine: Machine) -> Facts:
    """The driver's packages are installed, but the running kernel has no module from them."""
    module = machine.module
    if module is None or module.loaded or module.is_built is not False:
        return ()
    if not module.pci_devices or not module.packages:
        return ()
    return (
        *fact(f"no nvidia module for kernel {machine.host.release}", "modinfo"),
        *fact(f"installed: {', '.join(module.packages[:3])}", "dpkg"),
    )


def module_is_not_loaded_under_secure_boot(machine: Machine) -> Facts:
    """The nvidia module exists but is not loaded, and Secure Boot is on."""
    module = machine.module
    if module is None or not module.is_secure_boot_on or not module.is_built:
        return ()
    if module.loaded or not module.pci_devices or module.is_blacklisted or module.owner:
        return ()
    return (
        *fact("Secure Boot is on", "the firmware's variables"),
        *fact("the nvidia module exists but is not loaded", "modinfo"),
    )


def secure_boot_verdict(case: Case) -> RuleVerdict | None:
    """A rejected key, Secure Boot with a module that does not load, or a good build that fails."""
    is_unloaded = case.sees("module-not-loaded")
    is_silent = is_unloaded or case.sees("smi-cannot-communicate", "nvml-driver-not-loaded")
    module = case.machine.module
    certainty: Certainty
    if case.sees("module-key-refused") or is_silent and case.sees("secure-boot-on"):
        certainty = "decided"
    elif is_silent and module is not None and module.is_secure_boot_on:
        certainty = "likely"
    elif case.sees("module-not-permitted") and not case.is_container:
        # What the kernel says if it is locked down, which Secure Boot causes.
        certainty = "likely"
    elif is_unloaded and case.sees("module-built"):
        # It was built against the right sources, so the kernel has another reason to reject it.
        certainty = "likely"
    elif is_unloaded:
        certainty = "possible"
    else:
        return None
    return RuleVerdict(certainty=certainty)
