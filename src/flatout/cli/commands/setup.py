"""`flatout setup`: the build of a framework that a machine can run."""

from __future__ import annotations

from typing import Any

import click


@click.command("setup")
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
@click.option("--offline", "is_offline", is_flag=True, help="By the tables alone.")
@click.option("--json", "is_json", is_flag=True, help="One JSON document on stdout.")
def command(is_json: bool, **options: Any) -> int:
    """Choose the build of each FRAMEWORK (torch, tensorflow, paddle, jax) that fits.

    A version may follow: torch==2.9.*, 'jax<0.12'. Without FRAMEWORK: torch.
    """
    from flatout import setting_up
    from flatout.cli import show, show_setup
    from flatout.nouns.setup_request import SetupRequest

    request = SetupRequest(**options)
    chosen = setting_up.choose(request)
    for warning in chosen.warnings:
        show.print_note(f"warning: {warning}")
    if is_json:
        show.print_json(setting_up.report(chosen))
    else:
        show_setup.print_chosen(chosen)
    # A question about another machine is answered whatever the answer.
    return int(not request.cards and any(one.choice is None for one in chosen.answers))
