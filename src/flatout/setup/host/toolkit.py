"""A CUDA toolkit: only needed for compiling. Frameworks include their CUDA libraries."""

from __future__ import annotations

import re

from flatout.compat.rows import Tables
from flatout.errors import UsageError
from flatout.schema.machine import Machine
from flatout.schema.plan import Block, Exists, Plan, PlanStep, RunProgram
from flatout.schema.versions import Pair, pair, pair_text
from flatout.setup.host.compilers import VisualStudio, gcc_for, visual_studio_for
from flatout.setup.host.cudnn import cudnn_steps, local_cudnn_steps
from flatout.setup.host.host_facts import (
    HostFacts,
    apt_install,
    apt_update,
    host_facts_of,
    refuse_macos,
)
from flatout.setup.host.local_installer import (
    LocalInstaller,
    install_local,
    require_repository,
)
from flatout.setup.host.repository import cuda_repository
from flatout.setup.host.winget import AGREES, winget_install, winget_uninstall

# The newest toolkit for cards up to a capability. Source: CUDA 12.0 and 13.0 release notes.
_LAST_FOR = {(3, 7): (11, 8), (7, 2): (12, 9)}
# The first toolkit for cards of a capability. Source: release notes of these toolkits.
_FIRST_FOR = {
    (8, 9): (11, 8), (9, 0): (11, 8), (10, 0): (12, 8), (10, 3): (12, 9), (11, 0): (13, 0),
    (12, 0): (12, 8), (12, 1): (12, 9),
}  # fmt: skip
# The first toolkit in a repository; older ones need an older system.
_FIRST_IN = {
    "ubuntu2004": (11, 0), "ubuntu2204": (11, 7), "ubuntu2404": (12, 5), "ubuntu2604": (13, 2),
    "debian11": (11, 5), "debian12": (12, 3), "debian13": (13, 0), "wsl-ubuntu": (11, 0),
}  # fmt: skip
# In earlier ones the profiler needs libtinfo5, which Ubuntu 24.04 and later no longer have. One
# repository serves every Ubuntu inside WSL: it lists these packages, but they cannot be installed.
_FIRST_WITHOUT_TINFO5 = (12, 5)
# What winget has where it has no `12.0`. Source: microsoft/winget-pkgs, manifests/n/Nvidia/CUDA.
_IN_WINGET = {(12, 0): "12.0.1", (12, 2): "12.2.2"}
_NOT_IN_WINGET = ((11, 0), (11, 1), (11, 2), (11, 4))
# Compiler, headers and libraries: what torch's own headers include. Before CUDA 13 the installer
# without such a list also installs a display driver. Source: installation guides for Windows of
# 13.2 and 13.4, component names; microsoft/vcpkg, deploy-cuda.ps1 (12.1, 12.8 and 13.3, read from
# the installers themselves); pytorch/pytorch, .ci/pytorch/windows/internal/cuda_install.bat (11.6
# to 12.9).
_COMPONENTS = (
    "nvcc", "cudart", "cublas", "cublas_dev", "cufft", "cufft_dev", "curand", "curand_dev",
    "cusolver", "cusolver_dev", "cusparse", "cusparse_dev", "nvrtc", "nvrtc_dev", "nvtx", "thrust",
    "visual_studio_integration",
)  # fmt: skip
_SOURCE = "__global__ void kernel() {}"


def plan_toolkit(
    machine: Machine,
    requested_cuda: str | None,
    profile: str,
    tables: Tables,
    *,
    has_cudnn: bool = False,
    installer: LocalInstaller | None = None,
) -> Plan:
    """The toolkit of the requested version, else of the version of the installed torch.

    Args:
        machine: as it was read.
        requested_cuda: like "12.6".
        profile: the shell's startup file, where PATH is set.
        tables: of this release.
        has_cudnn: whether cuDNN is requested as well.
        installer: NVIDIA's local installer to take it from, not a repository; one of cuDNN adds
            cuDNN alone.

    Raises:
        UsageError: no-plan-here.
    """
    # In a container too: code for a container is compiled inside it.
    host = host_facts_of(machine, tables, may_be_container=True)
    refuse_macos(host)
    if installer is not None:
        _require_installer(host, installer, requested_cuda, has_cudnn=has_cudnn)
    cuda, why = version_for(machine, host, requested_cuda, tables)
    if installer is not None and installer.kind == "cudnn":
        return Plan(
            goal=f"cuDNN {installer.version} for CUDA {cuda[0]}",
            steps=local_cudnn_steps(host, cuda, installer),
        )
    if installer is not None and installer.cuda is not None:
        cuda, why = installer.cuda, "from the local installer"
    if host.cards and not _can_compile(cuda, host.cards):
        usual = pair_text(_usual(host.cards, host.driver))
        raise UsageError(
            "no-plan-here",
            f"CUDA {pair_text(cuda)} cannot compile for this card.",
            because=f"its compute capability is {pair_text(max(host.cards))}; "
            f"CUDA {pair_text(cuda)} is {why}",
            fix=f"flatout setup --toolkit --cuda {usual}, and a torch built with it",
        )
    is_windows = host.os == "windows"
    steps = _windows(cuda) if is_windows else _linux(host, cuda, profile, installer)
    if has_cudnn:
        steps += cudnn_steps(host, cuda, f"{_folder(cuda)}/bin/nvcc")
    added = " with cuDNN" if has_cudnn else ""
    return Plan(goal=f"CUDA toolkit {pair_text(cuda)}{added}, {why}", steps=steps)


def _require_installer(
    host: HostFacts, installer: LocalInstaller, requested_cuda: str | None, *, has_cudnn: bool
) -> None:
    """Refuses an installer that does not fit the system or the other options.

    Raises:
        UsageError: no-plan-here.
    """
    if host.family is None:
        raise UsageError(
            "no-plan-here",
            f"{installer.file} is for Ubuntu and Debian.",
            because=f"this is {host.distribution or host.os}",
            fix="leave --from out",
        )
    if installer.kind == "cudnn":
        return
    require_repository(installer, host.repository, host)
    installer_cuda = pair_text(installer.cuda or (0, 0))
    if requested_cuda and requested_cuda != installer_cuda:
        raise UsageError(
            "no-plan-here",
            f"{installer.file} contains CUDA {installer_cuda}, not {requested_cuda}.",
            fix=f"leave --cuda out, or download the local installer of CUDA {requested_cuda}",
        )
    if has_cudnn:
        raise UsageError(
            "no-plan-here",
            f"{installer.file} does not contain cuDNN.",
            because="NVIDIA has a separate local installer for it",
            fix="leave --with cudnn out; then flatout setup --toolkit --from "
            "cudnn-local-repo-*.deb, from https://developer.nvidia.com/cudnn-downloads",
        )


def version_for(
    machine: Machine, host: HostFacts, requested_cuda: str | None, tables: Tables
) -> tuple[Pair, str]:
    """The version, and why it is that one.

    Raises:
        UsageError: no-plan-here, for an unknown CUDA version.
    """
    known = sorted(pair(toolkit.cuda) for toolkit in tables.toolkits)
    if requested_cuda:
        if (
            not re.fullmatch(r"\d{2}\.\d", requested_cuda)
            or pair(requested_cuda) > known[-1]
            or pair(requested_cuda) < known[0]
        ):
            near = ", ".join(pair_text(version) for version in known[-6:])
            raise UsageError(
                "no-plan-here",
                f"`--cuda {requested_cuda}` is not a known CUDA version.",
                fix=f"use one of: {near}",
            )
        return pair(requested_cuda), "as requested"
    torch = machine.framework("torch")
    built = re.fullmatch(r"cu(\d{2})(\d)", (torch.build or "") if torch else "")
    if torch and built:
        text = f"the version torch {torch.version} was built with: extensions must use the same"
        return (int(built[1]), int(built[2])), text
    usual = _usual(host.cards, host.driver)
    return usual, "the default without a CUDA build of torch; --cuda VERSION chooses another"


def _usual(cards: tuple[Pair, ...], driver: tuple[int, ...]) -> Pair:
    """The CUDA version that today's builds for these cards use."""
    last = _last_for(max(cards)) if cards else None
    if last == (11, 8):
        return last
    # CUDA 13 needs driver 580. For older drivers and cards torch has builds with 12.6.
    # Source: CUDA 13.0 release notes, table of drivers; compat/torch.toml.
    return (12, 6) if last is not None or (driver and driver[0] < 580) else (13, 0)


def _last_for(card: Pair) -> Pair | None:
    return next((last for limit, last in _LAST_FOR.items() if card <= limit), None)


def _can_compile(cuda: Pair, cards: tuple[Pair, ...]) -> bool:
    """Whether it compiles for at least one of the cards."""
    return any(
        cuda >= _FIRST_FOR.get(card, (0, 0)) and cuda <= (_last_for(card) or cuda) for card in cards
    )


def _repository(host: HostFacts, cuda: Pair) -> str:
    """The repository that has this toolkit.

    Raises:
        UsageError: no-plan-here.
    """
    repository = host.repository
    if repository is None:
        raise UsageError(
            "no-plan-here",
            f"no CUDA package known for {host.distribution or 'this system'}.",
            because="it supports Ubuntu and Debian",
            fix="install it from https://developer.nvidia.com/cuda-downloads, "
            "without its driver if one is installed",
        )
    first = _FIRST_IN.get(repository, (0, 0))
    if repository == "wsl-ubuntu" and host.release not in ("18.04", "20.04", "22.04"):
        first = _FIRST_WITHOUT_TINFO5
    if cuda < first:
        raise UsageError(
            "no-plan-here",
            f"NVIDIA has no CUDA {pair_text(cuda)} that installs on {host.distribution}.",
            because="older ones need libtinfo5, which this Ubuntu no longer has"
            if first == _FIRST_WITHOUT_TINFO5
            else f"its repository {repository} starts with {pair_text(first)}",
            fix=f"flatout setup --toolkit --cuda {pair_text(first)}, or use a CUDA container",
        )
    return repository


def _folder(cuda: Pair) -> str:
    return f"/usr/local/cuda-{pair_text(cuda)}"


def _linux(
    host: HostFacts, cuda: Pair, profile: str, installer: LocalInstaller | None
) -> tuple[PlanStep, ...]:
    repository = _repository(host, cuda)
    source = (*cuda_repository(repository), apt_update())
    folder = _folder(cuda)
    # Never `cuda` or `cuda-12-6`: these install a driver.
    package = f"cuda-toolkit-{cuda[0]}-{cuda[1]}"
    older = gcc_for(cuda, host)
    compiler = (apt_install(("g++",), "the C++ compiler that nvcc calls"),)
    flags = {}
    if older is not None:
        changes = f"the C++ compiler for nvcc: CUDA {pair_text(cuda)} accepts g++ up to {older}"
        compiler = (apt_install((f"g++-{older}",), changes),)
        flags = {"NVCC_PREPEND_FLAGS": f"-ccbin /usr/bin/g++-{older}"}
    return (
        *(install_local(installer) if installer else source),
        apt_install((package,), f"{folder}: compiler, headers and libraries; no driver"),
        *compiler,
        PlanStep(
            text=f"let shells find nvcc {pair_text(cuda)}",
            action=Block(
                file=profile,
                name="cuda toolkit",
                lines=(
                    f"export CUDA_HOME={folder}", 'export PATH="$CUDA_HOME/bin:$PATH"',
                    *(f"export {name}='{value}'" for name, value in flags.items()),
                ),
            ),
            changes=f"{', '.join(['CUDA_HOME', 'PATH', *flags])} in {profile}",
        ),
        PlanStep(
            text="verify it by compiling a kernel",
            action=RunProgram(argv=("sh", "-c", _compile(f"{folder}/bin/nvcc")), environment=flags),
            changes="nothing",
            safety="safe",
            undo=("true",),
        ),
    )  # fmt: skip


def _compile(nvcc: str) -> str:
    """A line for sh. It compiles, since nvcc refuses an unsupported compiler only at that point."""
    return (
        f"d=$(mktemp -d) && echo '{_SOURCE}' >$d/kernel.cu && "
        f"{nvcc} -c $d/kernel.cu -o $d/kernel.o; code=$?; rm -rf $d; exit $code"
    )


def _windows(cuda: Pair) -> tuple[PlanStep, ...]:
    """Visual Studio comes first: the toolkit's installer adds its integration to it."""
    if cuda in _NOT_IN_WINGET:
        raise UsageError(
            "no-plan-here",
            f"winget has no CUDA {pair_text(cuda)}.",
            because="it has 11.3, 11.5 to 11.8, and 12.0 or later",
            fix="install it from https://developer.nvidia.com/cuda-toolkit-archive, without its "
            "driver; or flatout setup --toolkit --cuda 11.8",
        )
    tools = visual_studio_for(cuda)
    root = r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA"
    folder = rf"{root}\v{pair_text(cuda)}"
    # 11.x has no such component yet; 13.0 split the compiler into four.
    more = ("nvjitlink",) if cuda >= (12, 0) else ()
    more = (*more, "crt", "nvvm", "nvptxcompiler") if cuda >= (13, 0) else more
    components = " ".join(f"{component}_{pair_text(cuda)}" for component in (*_COMPONENTS, *more))
    version = _IN_WINGET.get(cuda, pair_text(cuda))
    return (
        _build_tools(tools),
        PlanStep(
            text=f"install CUDA {pair_text(cuda)}, without a display driver",
            action=RunProgram(
                argv=winget_install("Nvidia.CUDA", f"-s -n {components}", version=version),
                time_limit_s=7200.0,
            ),
            changes=f"{folder}: compiler, headers and libraries; CUDA_PATH, and its bin folder on "
            f"PATH; no driver, and Windows is not restarted; {AGREES}",
            where="powershell",
            needs_root=True,
            done_if=Exists(path=rf"{folder}\bin\nvcc.exe"),
            undo=winget_uninstall("Nvidia.CUDA", version=version),
        ),
        PlanStep(
            text="verify it by compiling a kernel",
            action=RunProgram(
                argv=("powershell.exe", "-NoProfile", "-Command",
                      _compile_on_windows(rf"{folder}\bin\nvcc.exe", tools)),
            ),
            changes=r"nothing except %TEMP%\flatout-nvcc",
            where="powershell",
            safety="safe",
            undo=("cmd.exe", "/c", "rem"),
        ),
    )  # fmt: skip


def _build_tools(tools: VisualStudio) -> PlanStep:
    package = f"Microsoft.VisualStudio.{tools.year}.BuildTools"
    added = f" --add {tools.component}" if tools.component else ""
    folder = _tools_folder(tools)
    toolset = f", with the older toolset {tools.toolset}, which this CUDA accepts"
    return PlanStep(
        text=f"install the build tools of Visual Studio {tools.year}"
        f"{toolset if tools.toolset else ''}",
        action=RunProgram(
            # Without --norestart it may restart Windows by itself.
            argv=winget_install(
                package,
                "--wait --passive --norestart --add Microsoft.VisualStudio.Workload.VCTools "
                f"--includeRecommended{added}",
            ),
            time_limit_s=7200.0,
        ),
        changes=f"cl.exe, link.exe and the Windows SDK, some 7 GB; {AGREES}",
        where="powershell",
        needs_root=True,
        done_if=None if tools.component else Exists(path=folder),
        undo=winget_uninstall(package),
    )  # fmt: skip


def _tools_folder(tools: VisualStudio) -> str:
    root = r"C:\Program Files (x86)\Microsoft Visual Studio"
    return rf"{root}\{tools.year}\BuildTools"


def _compile_on_windows(nvcc: str, tools: VisualStudio) -> str:
    """The same for PowerShell, in the environment of the build tools."""
    variables = rf"{_tools_folder(tools)}\VC\Auxiliary\Build\vcvarsall.bat"
    toolset = f" -vcvars_ver={tools.toolset}" if tools.toolset else ""
    return (
        "$d = Join-Path $env:TEMP 'flatout-nvcc'; New-Item -Force -ItemType Directory $d | "
        rf"Out-Null; Set-Content $d\kernel.cu '{_SOURCE}'; "
        f'cmd /c "`"{variables}`" x64{toolset} && `"{nvcc}`" -c $d\\kernel.cu '
        '-o $d\\kernel.obj"; exit $LASTEXITCODE'
    )
