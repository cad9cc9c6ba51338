"""A CUDA toolkit: only for what has to be compiled. Frameworks bring their CUDA libraries along."""

from __future__ import annotations

import re

from flatout.errors import UsageError
from flatout.nouns.machine import Machine
from flatout.nouns.plan import Block, Exists, Plan, Prints, Run, Step
from flatout.setup.goals.place import Place, apt_install, apt_update, place_of, refuse_macos
from flatout.setup.goals.repository import cuda_repository
from flatout.setup.rows import Pair, Tables
from flatout.setup.versions import pair, pair_text

# The newest toolkit for cards up to a capability. Source: CUDA 12.0 and 13.0 release notes.
_LAST_FOR = {(3, 7): (11, 8), (7, 2): (12, 9)}
# The first toolkit for cards of a capability. Source: release notes of these toolkits.
_FIRST_FOR = {
    (8, 9): (11, 8), (9, 0): (11, 8), (10, 0): (12, 8), (10, 3): (12, 9), (11, 0): (13, 0),
    (12, 0): (12, 8), (12, 1): (12, 9),
}  # fmt: skip
# The first toolkit that a repository holds; older ones want an older system.
_FIRST_IN = {
    "ubuntu2004": (11, 0), "ubuntu2204": (11, 7), "ubuntu2404": (12, 5), "ubuntu2604": (13, 2),
    "debian11": (11, 5), "debian12": (12, 3), "debian13": (13, 0), "wsl-ubuntu": (11, 0),
}  # fmt: skip
_BUILD_TOOLS = (
    "winget", "install", "--exact", "--id", "Microsoft.VisualStudio.2022.BuildTools", "--override",
    "--wait --passive --add Microsoft.VisualStudio.Workload.VCTools --includeRecommended",
)  # fmt: skip


def plan_toolkit(machine: Machine, wish: str | None, profile: str, tables: Tables) -> Plan:
    """The toolkit of that version; without a wish that of the installed torch.

    Args:
        machine: as it was read.
        wish: like "12.6".
        profile: the shell's, which is to find it.
        tables: of this release.

    Raises:
        UsageError: no-plan-here.
    """
    # Where things are compiled for a container, it holds the compiler too.
    place = place_of(machine, tables, may_be_container=True)
    refuse_macos(place)
    cuda, why = version_for(machine, place, wish, tables)
    if place.cards and not _can_compile(cuda, place.cards):
        usual = pair_text(_usual(place.cards, place.driver))
        raise UsageError(
            "no-plan-here",
            f"CUDA {pair_text(cuda)} compiles nothing for this card.",
            because=f"its compute capability is {pair_text(max(place.cards))}; {why}",
            fix=f"flatout setup --toolkit --cuda {usual}, and a torch that was built with it",
        )
    steps = _windows(cuda) if place.os == "windows" else _linux(place, cuda, profile)
    return Plan(
        goal=f"CUDA toolkit {pair_text(cuda)}, {why}",
        steps=steps,
    )


def version_for(
    machine: Machine, place: Place, wish: str | None, tables: Tables
) -> tuple[Pair, str]:
    """The version, and why it is that one.

    Raises:
        UsageError: no-plan-here, for what is no version of CUDA.
    """
    known = sorted(pair(one.cuda) for one in tables.toolkits)
    if wish:
        if not re.fullmatch(r"\d{2}\.\d", wish) or pair(wish) > known[-1] or pair(wish) < known[0]:
            near = ", ".join(pair_text(one) for one in known[-6:])
            raise UsageError("no-plan-here", f"`--cuda {wish}` is no CUDA that is known here.",
                             fix=f"use one of: {near}")  # fmt: skip
        return pair(wish), "as asked for"
    torch = machine.framework("torch")
    built = re.fullmatch(r"cu(\d{2})(\d)", (torch.build or "") if torch else "")
    if torch and built:
        text = f"what torch {torch.version} was built with: extensions must be built with the same"
        return (int(built[1]), int(built[2])), text
    usual = _usual(place.cards, place.driver)
    return usual, "since no torch with CUDA tells another one; --cuda VERSION names it"


def _usual(cards: tuple[Pair, ...], driver: tuple[int, ...]) -> Pair:
    """What today's builds are made with, for these cards."""
    last = _last_for(max(cards)) if cards else None
    if last == (11, 8):
        return last
    return (12, 6) if last is not None or (driver and driver[0] < 580) else (13, 0)


def _last_for(card: Pair) -> Pair | None:
    return next((last for limit, last in _LAST_FOR.items() if card <= limit), None)


def _can_compile(cuda: Pair, cards: tuple[Pair, ...]) -> bool:
    """Whether it makes code for one of the cards at least."""
    return any(
        cuda >= _FIRST_FOR.get(card, (0, 0)) and cuda <= (_last_for(card) or cuda) for card in cards
    )


def _linux(place: Place, cuda: Pair, profile: str) -> tuple[Step, ...]:
    repository = place.repository
    if repository is None:
        raise UsageError(
            "no-plan-here",
            f"flatout knows no package of CUDA for {place.distribution or 'this system'}.",
            because="it knows those for Ubuntu and Debian",
            fix="install it as https://developer.nvidia.com/cuda-downloads tells, "
            "without a driver where there is one",
        )
    first = _FIRST_IN.get(repository, (0, 0))
    if cuda < first:
        raise UsageError(
            "no-plan-here",
            f"NVIDIA has no CUDA {pair_text(cuda)} for {place.distribution}.",
            because=f"its repository {repository} begins with {pair_text(first)}",
            fix=f"flatout setup --toolkit --cuda {pair_text(first)}, or a container of CUDA",
        )
    folder = f"/usr/local/cuda-{pair_text(cuda)}"
    # Never `cuda`, nor `cuda-12-6`: these bring a driver.
    package = f"cuda-toolkit-{cuda[0]}-{cuda[1]}"
    return (
        *cuda_repository(repository),
        apt_update(),
        apt_install((package,), f"{folder}: compiler, headers and libraries; no driver"),
        apt_install(("g++",), "the C++ compiler that nvcc calls"),
        Step(
            text=f"let shells find nvcc {pair_text(cuda)}",
            action=Block(
                file=profile,
                name="cuda toolkit",
                lines=(f"export CUDA_HOME={folder}", 'export PATH="$CUDA_HOME/bin:$PATH"'),
            ),
            changes=f"CUDA_HOME and PATH in {profile}",
        ),
        Step(
            text="prove it",
            action=Run(argv=(f"{folder}/bin/nvcc", "--version")),
            changes="nothing",
            safety="safe",
            undo=("true",),
        ),
    )


def _windows(cuda: Pair) -> tuple[Step, ...]:
    """Visual Studio comes first: the toolkit's installer puts its part into it."""
    root = r"C:\Program Files\NVIDIA GPU Computing Toolkit\CUDA"
    folder = rf"{root}\v{pair_text(cuda)}"
    return (
        Step(
            text="install the build tools of Visual Studio 2022",
            action=Run(argv=_BUILD_TOOLS, time_limit_s=7200.0),
            changes="cl.exe, link.exe and the Windows SDK, some 7 GB",
            where="powershell",
            needs_root=True,
            done_if=Exists(path=r"C:\Program Files (x86)\Microsoft Visual Studio\2022\BuildTools"),
            undo=("winget", "uninstall", "--id", "Microsoft.VisualStudio.2022.BuildTools"),
        ),
        Step(
            text=f"install CUDA {pair_text(cuda)}",
            action=Run(
                argv=("winget", "install", "--exact", "--id", "Nvidia.CUDA", "--version",
                      pair_text(cuda)),
                time_limit_s=7200.0,
            ),
            changes=f"{folder}; its installer sets CUDA_PATH and puts its bin folder on PATH",
            where="powershell",
            needs_root=True,
            done_if=Exists(path=rf"{folder}\bin\nvcc.exe"),
            undo=("winget", "uninstall", "--id", "Nvidia.CUDA"),
        ),
        Step(
            text="prove it, in a new window",
            action=Run(argv=(rf"{folder}\bin\nvcc.exe", "--version")),
            changes="nothing",
            where="powershell",
            safety="safe",
            done_if=Prints(argv=(rf"{folder}\bin\nvcc.exe", "--version"), text=pair_text(cuda)),
            undo=("cmd.exe", "/c", "rem"),
        ),
    )  # fmt: skip
