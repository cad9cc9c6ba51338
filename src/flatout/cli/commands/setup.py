"""`flatout setup`: the build of a framework that a machine can run, and an environment with it."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.command_group import LazyGroup
from flatout.cli.commands.setup_export import command as export
from flatout.cli.options import json_document

_HOW = (
    click.option("--dry-run", "is_dry", is_flag=True, help="Show what would be done; change "
                                                           "nothing."),
    click.option("--yes", "is_agreed", is_flag=True, help="Do not ask for confirmation."),
    click.option(
        "--name", metavar="NAME",
        help="Name of the environment; by default the framework's name.",
    ),
    click.option(
        "--in", "folder", metavar="DIR",
        help="Folder for the environment; by default one of flatout's own.",
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
        help="Recreate an environment from a lock file or a bundle; with --toolkit: use NVIDIA's "
             "local installer.",
    ),
    click.option(
        "--bundle", metavar="DIR",
        help="Only download, to a folder that can be moved to another machine.",
    ),
    click.option(
        "--mirror", "mirrors", multiple=True, metavar="KIND=URL",
        help="URL of a mirror for packages, torch or python.",
    ),
    click.option("--remove", metavar="NAME", help="Remove an environment."),
    click.option("--repair", metavar="ENV", help="Repair an existing environment."),
)  # fmt: skip

# What is below an environment. One of them at most.
_BELOW = (
    click.option(
        "--driver-plan",
        "goal",
        flag_value="driver",
        help="Plan the installation of NVIDIA's driver, not an environment.",
    ),
    click.option(
        "--wsl", "goal", flag_value="wsl", help="Set up WSL from Windows, not an environment."
    ),
    click.option(
        "--toolkit", "goal", flag_value="toolkit", help="Set up a CUDA toolkit, not an environment."
    ),
    click.option(
        "--docker",
        "goal",
        flag_value="docker",
        help="Set up GPU access for containers, not an environment.",
    ),
)


def _with_how(command: Any) -> Any:
    for option in reversed((*_HOW, *_BELOW)):
        command = option(command)
    return command


@click.command("setup", cls=LazyGroup, invoke_without_command=True)
@click.argument("frameworks", nargs=-1, metavar="[FRAMEWORK]...")
@click.option(
    "--for", "cards", multiple=True, metavar="CARD",
    help="Plan for a machine with this GPU instead of this machine (repeatable; `cpu` for none).",
)  # fmt: skip
@click.option(
    "--driver",
    metavar="VERSION",
    help="NVIDIA driver of that machine; under WSL the one of Windows.",
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
@json_document
def command(is_json: bool, goal: str | None, **options: Any) -> int:
    """Create and test an environment for each FRAMEWORK (torch, tensorflow, paddle, jax).

    FRAMEWORK may include a version: torch==2.9.*, 'jax<0.12'. The default is torch. With --for,
    only show what fits another machine.
    """
    if goal is not None:
        from flatout.cli.flows import host_setup

        return host_setup.run(goal, options, is_json=is_json)
    from flatout.cli.flows import create_env

    return create_env.run(options, is_json=is_json)


command.add_command(export)
