"""`flatout setup`: the build of a framework that a machine can run, and an environment with it."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.commands.export import command as export
from flatout.cli.parts import WithParts

_HOW = (
    click.option("--dry-run", "is_dry", is_flag=True, help="Show what would be done."),
    click.option("--yes", "is_agreed", is_flag=True, help="Do not ask for confirmation."),
    click.option(
        "--name", metavar="NAME",
        help="Name of the environment; the framework's by default.",
    ),
    click.option(
        "--in", "folder", metavar="DIR",
        help="Folder to make the environment in; flatout's own by default.",
    ),
    click.option(
        "--with", "packages", multiple=True, metavar="PACKAGES",
        help="Additional packages, separated by commas; with --toolkit: cudnn.",
    ),
    click.option(
        "-r", "--requirements", "files", multiple=True, metavar="FILE",
        help="Also satisfy a requirements.txt, environment.yml or pyproject.toml.",
    ),
    click.option(
        "--manager", type=click.Choice(["uv", "pip", "conda"]),
        help="Tool that creates the environment and installs packages.",
    ),
    click.option(
        "--from", "lock", metavar="LOCK|DIR|DEB",
        help="Recreate the environment of a lock file or a bundle; with --toolkit: install from "
        "NVIDIA's local installer.",
    ),
    click.option(
        "--bundle", metavar="DIR",
        help="Only download, into a folder that can be moved to another machine.",
    ),
    click.option(
        "--mirror", "mirrors", multiple=True, metavar="KIND=URL",
        help="Mirror for packages, torch or python.",
    ),
    click.option("--remove", metavar="NAME", help="Remove an environment."),
    click.option("--repair", metavar="ENV", help="Repair an existing environment."),
)  # fmt: skip

# What lies below an environment. One of them at most.
_BELOW = (
    click.option(
        "--driver-plan", "goal", flag_value="driver", help="Plan NVIDIA's driver instead."
    ),
    click.option("--wsl", "goal", flag_value="wsl", help="Set up WSL from Windows instead."),
    click.option("--toolkit", "goal", flag_value="toolkit", help="Set up a CUDA toolkit instead."),
    click.option(
        "--docker", "goal", flag_value="docker", help="Set up the GPU in containers instead."
    ),
)


def _with_how(command: Any) -> Any:
    for option in reversed((*_HOW, *_BELOW)):
        command = option(command)
    return command


@click.command("setup", cls=WithParts, invoke_without_command=True)
@click.argument("frameworks", nargs=-1, metavar="[FRAMEWORK]...")
@click.option(
    "--for", "cards", multiple=True, metavar="CARD",
    help="Choose for another machine with this card; `cpu` for none. Repeat for several cards.",
)  # fmt: skip
@click.option(
    "--driver", metavar="VERSION", help="NVIDIA driver of that machine; under WSL that of Windows."
)
@click.option(
    "--os", type=click.Choice(["linux", "wsl2", "windows", "macos"]),
    help="Operating system of that machine.  [default: linux]",
)  # fmt: skip
@click.option("--python", metavar="VERSION", help="Python version, such as 3.12.")
@click.option("--cuda", metavar="VERSION", help="CUDA version, such as 12.6.")
@click.option("--cpu", "is_cpu", is_flag=True, help="Use the CPU build.")
@click.option("--nightly", "is_nightly", is_flag=True, help="Use nightly builds.")
@click.option("--offline", "is_offline", is_flag=True, help="Do not use the network.")
@_with_how
@click.option("--json", "is_json", is_flag=True, help="Print one JSON document on stdout.")
def command(is_json: bool, goal: str | None, **options: Any) -> int:
    """Make an environment for each FRAMEWORK (torch, tensorflow, paddle, jax), and prove it.

    A version may follow: torch==2.9.*, 'jax<0.12'. Without FRAMEWORK: torch. With --for: only say
    what fits another machine.
    """
    if goal is not None:
        from flatout.cli import laying

        return laying.run(goal, options, is_json=is_json)
    from flatout.cli import making

    return making.run(options, is_json=is_json)


command.add_command(export)
