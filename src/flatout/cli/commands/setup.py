"""`flatout setup`: the build of a framework that a machine can run, and an environment with it."""

from __future__ import annotations

from typing import Any

import click

from flatout.cli.commands.export import command as export
from flatout.cli.parts import WithParts

_HOW = (
    click.option("--dry-run", "is_dry", is_flag=True, help="Show what would be done."),
    click.option("--yes", "is_agreed", is_flag=True, help="Do it without asking."),
    click.option("--name", metavar="NAME", help="Another name than the framework's."),
    click.option("--in", "folder", metavar="DIR", help="Another folder than flatout's own."),
    click.option(
        "--with", "packages", multiple=True, metavar="PACKAGES",
        help="Further packages, with commas between.",
    ),
    click.option(
        "-r", "--requirements", "files", multiple=True, metavar="FILE",
        help="requirements.txt, environment.yml or pyproject.toml to be met as well.",
    ),
    click.option(
        "--manager", type=click.Choice(["uv", "pip", "conda"]), help="What makes and installs."
    ),
    click.option("--from", "lock", metavar="LOCK|DIR", help="The same as a lock, or a bundle."),
    click.option("--bundle", metavar="DIR", help="Only download, into a folder to take along."),
    click.option(
        "--mirror", "mirrors", multiple=True, metavar="KIND=URL",
        help="Another place for packages, torch or python.",
    ),
    click.option("--remove", metavar="NAME", help="Remove an environment."),
    click.option("--repair", metavar="ENV", help="Mend an environment that is there."),
)  # fmt: skip

# What lies below an environment. One of them at most.
_BELOW = (
    click.option("--driver-plan", "goal", flag_value="driver", help="NVIDIA's driver instead."),
    click.option("--wsl", "goal", flag_value="wsl", help="From Windows into WSL instead."),
    click.option("--toolkit", "goal", flag_value="toolkit", help="A CUDA toolkit instead."),
    click.option("--docker", "goal", flag_value="docker", help="The GPU in containers instead."),
)


def _with_how(command: Any) -> Any:
    for option in reversed((*_HOW, *_BELOW)):
        command = option(command)
    return command


@click.command("setup", cls=WithParts, invoke_without_command=True)
@click.argument("frameworks", nargs=-1, metavar="[FRAMEWORK]...")
@click.option(
    "--for", "cards", multiple=True, metavar="CARD",
    help="For a machine with this card that is not here; `cpu` for none. Again for more cards.",
)  # fmt: skip
@click.option("--driver", metavar="VERSION", help="Its NVIDIA driver; Windows' number under WSL.")
@click.option(
    "--os", type=click.Choice(["linux", "wsl2", "windows", "macos"]),
    help="Its system. [default: linux]",
)  # fmt: skip
@click.option("--python", metavar="VERSION", help="The Python to have, like 3.12.")
@click.option("--cuda", metavar="VERSION", help="The CUDA to have, like 12.6.")
@click.option("--cpu", "is_cpu", is_flag=True, help="The build for the CPU.")
@click.option("--nightly", "is_nightly", is_flag=True, help="Nightly builds.")
@click.option("--offline", "is_offline", is_flag=True, help="Use no network.")
@_with_how
@click.option("--json", "is_json", is_flag=True, help="One JSON document on stdout.")
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
